"""Applies gradients: clipping, learning rate decay, and the refusal of what is not finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from seed_rl.optimizer_config import OptimizerConfig

_ADAM_BETA_2 = 0.999
# What each keeps for every variable.
_SLOTS = {"adam": ("mean", "mean_square"), "rmsprop": ("mean_square", "update")}


class Update(NamedTuple):
    """What became of one set of gradients, scalars."""

    applied: tf.Tensor  # bool; False: loss or gradients were not finite, and nothing changed
    gradient_norm: tf.Tensor  # float32, before clipping
    learning_rate: tf.Tensor  # float32


class Optimizer(tf.Module):
    """Adam or RMSProp over a fixed list of variables. A Checkpoint saves all its state.

    Each variable is updated by one fused operation of TensorFlow: an optimizer of Keras, which
    goes through memory once for each term of the formula, costs more than twice as much.
    """

    def __init__(
        self, config: OptimizerConfig, variables: Sequence[tf.Variable], total_updates: int
    ) -> None:
        """`total_updates` is where a decaying learning rate reaches 0."""
        super().__init__(name="optimizer")
        if total_updates < 1:
            raise ValueError(f"total_updates: wanted at least 1, saw {total_updates}")
        self._config = config
        self._total_updates = total_updates
        self._variables = list(variables)
        # How many updates were applied.
        self.num_updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="num_updates")
        # By names of their own, so that no checkpoint of one is taken for one of the other.
        self._slots = {
            f"{config.optimizer}_{name}": [_slot(variable, name) for variable in self._variables]
            for name in _SLOTS[config.optimizer]
        }

    def apply(self, loss: tf.Tensor, gradients: Sequence[tf.Tensor]) -> Update:
        """Updates the variables, unless the loss or a gradient is not finite."""
        config = self._config
        norm = tf.linalg.global_norm(gradients)
        finite = tf.math.is_finite(norm) & tf.math.is_finite(loss)
        learning_rate = self._learning_rate()
        scale = config.clip_norm / tf.maximum(norm, config.clip_norm) if config.clip_norm else None

        def update() -> tf.Tensor:
            apply_to = self._adam if config.optimizer == "adam" else self._rmsprop
            clipped = gradients if scale is None else [part * scale for part in gradients]
            apply_to(learning_rate, clipped)
            self.num_updates.assign_add(1)
            return tf.constant(True)

        applied = tf.cond(finite, update, lambda: tf.constant(False))
        return Update(applied, norm, learning_rate)

    def _learning_rate(self) -> tf.Tensor:
        rate = tf.constant(self._config.learning_rate, tf.float32)
        if not self._config.learning_rate_decay:
            return rate
        done = tf.cast(self.num_updates, tf.float32) / self._total_updates
        return rate * tf.maximum(1.0 - done, 0.0)

    def _adam(self, learning_rate: tf.Tensor, gradients: Sequence[tf.Tensor]) -> None:
        """Kingma and Ba 2015, in the form that precedes their section 2.1."""
        config = self._config
        beta_1, beta_2 = tf.constant(config.adam_beta_1), tf.constant(_ADAM_BETA_2)
        count = tf.cast(self.num_updates + 1, tf.float32)
        means, squares = self._slots["adam_mean"], self._slots["adam_mean_square"]
        for i, gradient in enumerate(gradients):
            tf.raw_ops.ResourceApplyAdam(
                var=self._variables[i].handle,
                m=means[i].handle,
                v=squares[i].handle,
                beta1_power=tf.pow(beta_1, count),
                beta2_power=tf.pow(beta_2, count),
                lr=learning_rate,
                beta1=beta_1,
                beta2=beta_2,
                epsilon=config.adam_epsilon,
                grad=gradient,
            )

    def _rmsprop(self, learning_rate: tf.Tensor, gradients: Sequence[tf.Tensor]) -> None:
        config = self._config
        squares, updates = self._slots["rmsprop_mean_square"], self._slots["rmsprop_update"]
        for i, gradient in enumerate(gradients):
            tf.raw_ops.ResourceApplyRMSProp(
                var=self._variables[i].handle,
                ms=squares[i].handle,
                mom=updates[i].handle,
                lr=learning_rate,
                rho=config.rmsprop_decay,
                momentum=0.0,
                epsilon=config.rmsprop_epsilon,
                grad=gradient,
            )


def _slot(variable: tf.Variable, name: str) -> tf.Variable:
    return tf.Variable(tf.zeros_like(variable), trainable=False, name=name)
