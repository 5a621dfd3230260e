"""Applies gradients: clipping, learning rate decay, and the refusal of what is not finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from seed_rl.optimizer_config import OptimizerConfig


class Update(NamedTuple):
    """What became of one set of gradients, scalars."""

    applied: tf.Tensor  # bool; False: loss or gradients were not finite, and nothing changed
    gradient_norm: tf.Tensor  # float32, before clipping
    learning_rate: tf.Tensor  # float32


class Optimizer(tf.Module):
    """Adam or RMSProp over a fixed list of variables. A Checkpoint saves all its state."""

    def __init__(
        self, config: OptimizerConfig, variables: Sequence[tf.Variable], total_updates: int
    ) -> None:
        """`total_updates` is where a decaying learning rate reaches 0."""
        super().__init__(name="optimizer")
        if keras.backend.backend() != "tensorflow":
            raise RuntimeError(
                f"Keras backend is {keras.backend.backend()}, wanted tensorflow; "
                "set KERAS_BACKEND=tensorflow"
            )
        if total_updates < 1:
            raise ValueError(f"total_updates: wanted at least 1, saw {total_updates}")
        # A rate that stays is a schedule, too. As a number it would be a variable, which a
        # checkpoint sets back to what it was.
        rate = keras.optimizers.schedules.PolynomialDecay(
            config.learning_rate,
            total_updates,
            0.0 if config.learning_rate_decay else config.learning_rate,
        )
        if config.optimizer == "adam":
            self._optimizer = keras.optimizers.Adam(
                rate, beta_1=config.adam_beta_1, epsilon=config.adam_epsilon
            )
        else:
            self._optimizer = keras.optimizers.RMSprop(
                rate, rho=config.rmsprop_decay, epsilon=config.rmsprop_epsilon
            )
        self._variables = list(variables)
        self._optimizer.build(self._variables)  # here: a tf.function may not make variables
        self._clip_norm = config.clip_norm

    @property
    def num_updates(self) -> tf.Variable:
        """How many updates were applied, int."""
        return self._optimizer.iterations.value

    def apply(self, loss: tf.Tensor, gradients: Sequence[tf.Tensor]) -> Update:
        """Updates the variables, unless the loss or a gradient is not finite."""
        norm = tf.linalg.global_norm(gradients)
        finite = tf.math.is_finite(norm) & tf.math.is_finite(loss)
        learning_rate = tf.convert_to_tensor(self._optimizer.learning_rate)
        if self._clip_norm:
            scale = self._clip_norm / tf.maximum(norm, self._clip_norm)
            gradients = [gradient * scale for gradient in gradients]

        def update() -> tf.Tensor:
            self._optimizer.apply(gradients, self._variables)
            return tf.constant(True)

        applied = tf.cond(finite, update, lambda: tf.constant(False))
        return Update(applied, norm, learning_rate)
