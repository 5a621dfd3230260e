"""A long short-term memory whose state restarts at the first step of each episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from seed_rl.agents.networks.layers import random_kernel

State = tuple[tf.Tensor, tf.Tensor]  # hidden and cell, both [B, size]


class Lstm(tf.Module):
    """The LSTM of Gers et al. 2000 with one bias, which starts at 1 for the forget gates.

    `first` is True where the state counts as zeros, whatever finite numbers it holds.
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
        hidden, cell, _ = _advance(
            self._project(inputs), _keep(first), *state, self._recurrent_kernel
        )
        return hidden, (hidden, cell)

    def unroll(self, inputs: tf.Tensor, first: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        """T steps: inputs `[T, B, input_size]`, first `[T, B]` to outputs `[T, B, size]`."""
        length, batch_size, input_size = inputs.shape
        projected = self._project(tf.reshape(inputs, [-1, input_size]))
        projected = tf.reshape(projected, [length, batch_size, 4 * self._size])
        outputs, *state = _roll(
            projected, _keep(first), *state, self._recurrent_kernel.read_value()
        )
        return outputs, tuple(state)

    def _project(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.bias_add(tf.matmul(inputs, self._input_kernel), self._bias)


def _keep(first: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.logical_not(first), tf.float32)[..., tf.newaxis]


def _advance(
    projected: tf.Tensor, keep: tf.Tensor, hidden: tf.Tensor, cell: tf.Tensor, kernel: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Hidden and cell `[B, size]` after a step, and what the gates let through, `[B, 4 size]`."""
    size = hidden.shape[-1]
    gates = projected + tf.matmul(hidden * keep, kernel)
    opened = tf.concat([tf.sigmoid(gates[:, : 3 * size]), tf.tanh(gates[:, 3 * size :])], axis=-1)
    input_gate, forget_gate, output_gate, candidates = tf.split(opened, 4, axis=-1)
    cell = forget_gate * (cell * keep) + input_gate * candidates
    return output_gate * tf.tanh(cell), cell, opened


@tf.custom_gradient
def _roll(
    projected: tf.Tensor, keep: tf.Tensor, hidden: tf.Tensor, cell: tf.Tensor, kernel: tf.Tensor
) -> Any:
    """Hidden states `[T, B, size]` after each step, and the last hidden and cell.

    The loops of both directions are compiled, and the gradient of the weights is one product after
    the loop instead of one in each round: a third of the cost of TensorFlow's own loop.
    """
    # A tape that watched these would want the compiled loop's own gradient, which there is not.
    constants = map(tf.stop_gradient, (projected, keep, hidden, cell, kernel))
    hiddens, cells, opened = _forward(*constants)

    def gradient(
        to_hiddens: tf.Tensor, to_last_hidden: tf.Tensor, to_last_cell: tf.Tensor
    ) -> tuple[tf.Tensor | None, ...]:
        def before(first: tf.Tensor, states: tf.Tensor) -> tf.Tensor:
            """What each step found, `[T, B, size]`."""
            return keep * tf.concat([first[tf.newaxis], states[:-1]], axis=0)

        to_gates, to_hidden, to_cell = _backward(
            to_hiddens,
            to_last_hidden,
            to_last_cell,
            keep,
            before(cell, cells),
            cells,
            opened,
            kernel,
        )
        size = hidden.shape[-1]
        to_kernel = tf.matmul(
            tf.reshape(before(hidden, hiddens), [-1, size]),
            tf.reshape(to_gates, [-1, 4 * size]),
            transpose_a=True,
        )
        return to_gates, None, to_hidden, to_cell, to_kernel

    return (hiddens, hiddens[-1], cells[-1]), gradient


@tf.function(autograph=False, jit_compile=True)
def _forward(
    projected: tf.Tensor, keep: tf.Tensor, hidden: tf.Tensor, cell: tf.Tensor, kernel: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Hidden, cell and gates after every step, `[T, B, ...]`."""
    rows, keeps = _arrays(projected, keep)
    length = projected.shape[0]
    outputs = tuple(tf.TensorArray(tf.float32, length) for _ in range(3))

    def body(t: tf.Tensor, hidden: tf.Tensor, cell: tf.Tensor, outputs: Any) -> Any:
        step = _advance(rows.read(t), keeps.read(t), hidden, cell, kernel)
        written = [array.write(t, value) for array, value in zip(outputs, step, strict=True)]
        return t + 1, step[0], step[1], tuple(written)

    *_, outputs = tf.while_loop(
        lambda t, *_: t < length, body, (0, hidden, cell, outputs), maximum_iterations=length
    )
    stacked_hidden, stacked_cell, stacked_gates = (array.stack() for array in outputs)
    return stacked_hidden, stacked_cell, stacked_gates


@tf.function(autograph=False, jit_compile=True)
def _backward(
    to_hiddens: tf.Tensor,
    to_last_hidden: tf.Tensor,
    to_last_cell: tf.Tensor,
    keep: tf.Tensor,
    cells_before: tf.Tensor,
    cells: tf.Tensor,
    opened: tf.Tensor,
    kernel: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gradients of what goes into the gates `[T, B, 4 size]`, of the first hidden and cell."""
    inputs = _arrays(to_hiddens, keep, cells_before, cells, opened)
    length = to_hiddens.shape[0]

    def body(t: tf.Tensor, to_hidden: tf.Tensor, to_cell: tf.Tensor, to_gates: Any) -> Any:
        to_output, kept, cell_before, cell, gates = (array.read(t) for array in inputs)
        input_gate, forget_gate, output_gate, candidates = tf.split(gates, 4, axis=-1)
        squashed = tf.tanh(cell)
        to_hidden = to_hidden + to_output
        to_cell = to_cell + to_hidden * output_gate * (1.0 - tf.square(squashed))
        to_opened = tf.concat(
            [to_cell * candidates, to_cell * cell_before, to_hidden * squashed], axis=-1
        )
        sigmoids = gates[:, : -candidates.shape[-1]]
        to_gate = tf.concat(
            [
                to_opened * sigmoids * (1.0 - sigmoids),
                to_cell * input_gate * (1.0 - tf.square(candidates)),
            ],
            axis=-1,
        )
        to_hidden = kept * tf.matmul(to_gate, kernel, transpose_b=True)
        return t - 1, to_hidden, kept * to_cell * forget_gate, to_gates.write(t, to_gate)

    _, to_hidden, to_cell, to_gates = tf.while_loop(
        lambda t, *_: t >= 0,
        body,
        (length - 1, to_last_hidden, to_last_cell, tf.TensorArray(tf.float32, length)),
        maximum_iterations=length,
    )
    return to_gates.stack(), to_hidden, to_cell


def _arrays(*tensors: tf.Tensor) -> list[tf.TensorArray]:
    """Arrays of the tensors' rows: indexing a tensor in a loop would copy all of it."""
    return [tf.TensorArray(tensor.dtype, tensor.shape[0]).unstack(tensor) for tensor in tensors]
