"""A long short-term memory whose state restarts at the first step of each episode."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from seed_rl.agents.networks.layers import random_kernel

State = tuple[tf.Tensor, tf.Tensor]  # hidden and cell, both [B, size]


class Lstm(tf.Module):
    """The LSTM of Gers et al. 2000 with one bias, which starts at 1 for the forget gates.

    `first` is True where the state counts as zeros, whatever it holds.
    """

    def __init__(self, input_size: int, size: int, rng: np.random.Generator) -> None:
        super().__init__(name="lstm")
        self._size = size
        # Columns of all four: input, forget and output gates, and the candidates.
        self._input_kernel = tf.Variable(
            random_kernel(rng, (input_size, 4 * size)), name="lstm/input_kernel"
        )
        self._recurrent_kernel = tf.Variable(
            random_kernel(rng, (size, 4 * size)), name="lstm/recurrent_kernel"
        )
        bias = np.zeros(4 * size, np.float32)
        bias[size : 2 * size] = 1
        self._bias = tf.Variable(bias, name="lstm/bias")

    def initial_state(self, batch_size: int) -> State:
        return tf.zeros([batch_size, self._size]), tf.zeros([batch_size, self._size])

    def step(self, inputs: tf.Tensor, first: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        """One step: inputs `[B, input_size]`, first `[B]` to outputs `[B, size]`."""
        state = self._advance(self._project(inputs), _keep(first), state)
        return state[0], state

    def unroll(self, inputs: tf.Tensor, first: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        """T steps: inputs `[T, B, input_size]`, first `[T, B]` to outputs `[T, B, size]`."""
        length, batch_size, input_size = inputs.shape
        projected = self._project(tf.reshape(inputs, [-1, input_size]))
        projected = tf.reshape(projected, [length, batch_size, 4 * self._size])
        # Arrays, since the gradient of indexing a tensor is a tensor as large, at each step.
        rows = tf.TensorArray(tf.float32, length).unstack(projected)
        keeps = tf.TensorArray(tf.float32, length).unstack(_keep(first))
        outputs = tf.TensorArray(tf.float32, length, element_shape=[batch_size, self._size])

        def advance(
            t: tf.Tensor, state: State, outputs: tf.TensorArray
        ) -> tuple[tf.Tensor, State, tf.TensorArray]:
            state = self._advance(rows.read(t), keeps.read(t), state)
            return t + 1, state, outputs.write(t, state[0])

        _, state, outputs = tf.while_loop(
            lambda t, *_: t < length, advance, (0, state, outputs), maximum_iterations=length
        )
        return outputs.stack(), state

    def _project(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.bias_add(tf.matmul(inputs, self._input_kernel), self._bias)

    def _advance(self, projected: tf.Tensor, keep: tf.Tensor, state: State) -> State:
        hidden, cell = state[0] * keep, state[1] * keep
        gates = projected + tf.matmul(hidden, self._recurrent_kernel)
        opened = tf.sigmoid(gates[:, : 3 * self._size])
        input_gate, forget_gate, output_gate = tf.split(opened, 3, axis=-1)
        cell = forget_gate * cell + input_gate * tf.tanh(gates[:, 3 * self._size :])
        return output_gate * tf.tanh(cell), cell


def _keep(first: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.logical_not(first), tf.float32)[..., tf.newaxis]
