"""Several independent actions at once."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from seed_rl import specs
from seed_rl.distributions.categorical import Categorical
from seed_rl.distributions.tanh_normal import TanhNormal
from seed_rl.specs import Nest


@dataclasses.dataclass(frozen=True)
class Joint:
    """The product of the distributions of the leaves of an action nest.

    Parameters, and masks, are those of the parts side by side, in the order of the flattened nest.
    """

    parts: tuple[Categorical | TanhNormal, ...]
    structure: Nest  # with anything for leaves

    @property
    def num_parameters(self) -> int:
        return sum(part.num_parameters for part in self.parts)

    @property
    def num_choices(self) -> int:
        """The size of a mask: of all choices together."""
        return sum(part.num_choices for part in self.parts)

    def masked(self, parameters: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """The parameters without the choices whose mask `[..., num_choices]` is 0."""
        masks = tf.split(mask, [part.num_choices for part in self.parts], axis=-1)
        each = zip(self.parts, self._split(parameters), masks, strict=True)
        return tf.concat([part.masked(own, mask) for part, own, mask in each], axis=-1)

    def log_prob(self, parameters: tf.Tensor, action: Nest) -> tf.Tensor:
        """The logarithm of the probability, or density, of each whole action, `[...]`."""
        each = zip(self.parts, self._split(parameters), specs.flatten(action), strict=True)
        return tf.add_n([part.log_prob(own, leaf) for part, own, leaf in each])

    def entropy(self, parameters: tf.Tensor) -> tf.Tensor:
        """In nats, `[...]`."""
        each = zip(self.parts, self._split(parameters), strict=True)
        return tf.add_n([part.entropy(own) for part, own in each])

    def kl(self, parameters: tf.Tensor, other_parameters: tf.Tensor) -> tf.Tensor:
        """KL(this || other) in nats, `[...]`."""
        own, other = self._split(parameters), self._split(other_parameters)
        return tf.add_n(
            [part.kl(*pair) for part, *pair in zip(self.parts, own, other, strict=True)]
        )

    def sample(self, parameters: tf.Tensor, seed: tf.Tensor) -> Nest:
        """Actions drawn at random, the same ones for the same `seed`, int32 `[2]`."""
        seeds = tf.unstack(tf.random.split(seed, len(self.parts)))
        each = zip(self.parts, self._split(parameters), seeds, strict=True)
        return specs.unflatten(self.structure, [part.sample(own, seed) for part, own, seed in each])

    def mode(self, parameters: tf.Tensor) -> Nest:
        """The mode of each part."""
        each = zip(self.parts, self._split(parameters), strict=True)
        return specs.unflatten(self.structure, [part.mode(own) for part, own in each])

    def _split(self, parameters: tf.Tensor) -> list[tf.Tensor]:
        return tf.split(parameters, [part.num_parameters for part in self.parts], axis=-1)
