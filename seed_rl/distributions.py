"""Distributions over actions, as functions of the numbers that a policy head puts out."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from seed_rl.specs import Nest, is_choice


@dataclasses.dataclass(frozen=True)
class Categorical:
    """A choice among `num_parameters` actions; the parameters are logits `[..., num_parameters]`.

    Actions are integers `[...]`, from 0 up, of `dtype`.
    """

    num_parameters: int
    dtype: str

    def log_prob(self, parameters: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
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

    def sample(self, parameters: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Actions drawn at random, the same ones for the same `seed`, int32 `[2]`."""
        # The largest of logits plus Gumbel noise. An action even where a logit is NaN.
        uniform = tf.random.stateless_uniform(
            tf.shape(parameters), seed, minval=np.finfo(np.float32).tiny
        )
        return self.mode(parameters - tf.math.log(-tf.math.log(uniform)))

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """The most probable actions."""
        return tf.cast(tf.argmax(parameters, axis=-1, output_type=tf.int32), self.dtype)


def for_action(spec: Nest) -> Categorical:
    """The distribution that a policy over such actions needs."""
    if is_choice(spec):
        return Categorical(spec.num_choices, spec.dtype)
    raise ValueError(
        f"action spec {spec}: wanted one integer from 0 to a maximum; wrap the environment so "
        "that it numbers its actions"
    )
