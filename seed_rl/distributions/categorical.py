"""A choice among a number of actions, some of which may be masked."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from seed_rl.specs import Nest

# What masked logits and values are. Below all others, of probability exactly 0, and finite, so that
# entropies, divergences and gradients are finite too.
_MASKED = -1e38
# What a NaN counts as when actions are chosen: below all numbers, above what is masked.
_WORST = -1e37


def allowed(mask: tf.Tensor) -> tf.Tensor:
    """Which actions a mask `[..., n]` allows, bool: those where it is not 0.

    One of nothing but zeros allows all: environments send it where no action is left, at the end of
    an episode.
    """
    is_set = tf.cast(mask, tf.bool)
    return is_set | ~tf.reduce_any(is_set, axis=-1, keepdims=True)


def masked(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """The values `[..., n]` of actions, lowest for those that the mask does not allow."""
    values = tf.maximum(values, tf.constant(_WORST, values.dtype))  # of a broken network
    return tf.where(allowed(mask), values, tf.constant(_MASKED, values.dtype))


def best(values: tf.Tensor) -> tf.Tensor:
    """Indices int32 `[...]` of the largest of `[..., n]`. A NaN is chosen over nothing but masked
    values, so that an action is legal even while a network is broken.
    """
    values = tf.where(tf.math.is_nan(values), tf.constant(_WORST, values.dtype), values)
    return tf.argmax(values, axis=-1, output_type=tf.int32)


@dataclasses.dataclass(frozen=True)
class Categorical:
    """A choice among `num_parameters` actions; the parameters are logits `[..., num_parameters]`.

    Actions are integers `[...]`, from 0 up, of `dtype`.
    """

    num_parameters: int
    dtype: str

    @property
    def num_choices(self) -> int:
        """The size of a mask."""
        return self.num_parameters

    def masked(self, parameters: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """The parameters of the distribution among the actions that the mask `[..., n]` allows."""
        return masked(parameters, mask)

    def log_prob(self, parameters: tf.Tensor, action: Nest) -> tf.Tensor:
        """The logarithm of the probability of each action, `[...]`."""
        # One kernel each way; a gather from log_softmax would go back through a scatter.
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.cast(action, tf.int32), logits=parameters
        )

    def entropy(self, parameters: tf.Tensor) -> tf.Tensor:
        """In nats, `[...]`."""
        log_probs = tf.nn.log_softmax(parameters)
        return -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1)

    def kl(self, parameters: tf.Tensor, other_parameters: tf.Tensor) -> tf.Tensor:
        """KL(this || other) in nats, `[...]`."""
        log_probs = tf.nn.log_softmax(parameters)
        difference = log_probs - tf.nn.log_softmax(other_parameters)
        return tf.reduce_sum(tf.exp(log_probs) * difference, axis=-1)

    def sample(self, parameters: tf.Tensor, seed: tf.Tensor) -> Nest:
        """Actions drawn at random, the same ones for the same `seed`, int32 `[2]`."""
        # The largest of logits plus Gumbel noise. An action even where a logit is NaN.
        uniform = tf.random.stateless_uniform(
            tf.shape(parameters), seed, minval=np.finfo(np.float32).tiny
        )
        return self.mode(parameters - tf.math.log(-tf.math.log(uniform)))

    def mode(self, parameters: tf.Tensor) -> Nest:
        """The most probable actions."""
        return tf.cast(best(parameters), self.dtype)
