"""The LSTM against numpy, and its restart at FIRST."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from seed_rl.agents.networks.lstm import Lstm

LENGTH, BATCH, INPUTS, SIZE = 6, 3, 5, 4


@pytest.fixture
def lstm() -> Lstm:
    return Lstm(INPUTS, SIZE, np.random.default_rng(0))


@pytest.fixture
def inputs() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((LENGTH, BATCH, INPUTS)).astype(np.float32)


@pytest.fixture
def state() -> tuple[tf.Tensor, tf.Tensor]:
    hidden, cell = np.random.default_rng(2).standard_normal((2, BATCH, SIZE)).astype(np.float32)
    return tf.constant(hidden), tf.constant(cell)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_unroll_equals_numpy(
    lstm: Lstm, inputs: np.ndarray, state: tuple[tf.Tensor, tf.Tensor]
) -> None:
    bias, kernel, recurrent = (
        next(v.numpy().astype(np.float64) for v in lstm.variables if v.name == f"lstm/{name}:0")
        for name in ("bias", "input_kernel", "recurrent_kernel")
    )
    first = np.zeros((LENGTH, BATCH), bool)
    first[2, 0] = first[4, 1] = first[0, 2] = True
    outputs, last = lstm.unroll(tf.constant(inputs), tf.constant(first), state)
    hidden, cell = (part.numpy().astype(np.float64) for part in state)
    for t in range(LENGTH):
        hidden[first[t]] = cell[first[t]] = 0
        gates = inputs[t] @ kernel + hidden @ recurrent + bias
        i, f, o, g = np.split(gates, 4, axis=-1)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
        np.testing.assert_allclose(outputs[t], hidden, atol=1e-6)
    np.testing.assert_allclose(last[0], hidden, atol=1e-6)
    np.testing.assert_allclose(last[1], cell, atol=1e-6)


def test_steps_equal_unroll(
    lstm: Lstm, inputs: np.ndarray, state: tuple[tf.Tensor, tf.Tensor]
) -> None:
    first = np.random.default_rng(3).random((LENGTH, BATCH)) < 0.3
    outputs, last = lstm.unroll(tf.constant(inputs), tf.constant(first), state)
    for t in range(LENGTH):
        output, state = lstm.step(tf.constant(inputs[t]), tf.constant(first[t]), state)
        np.testing.assert_allclose(output, outputs[t], atol=1e-6)
    for seen, wanted in zip(state, last, strict=True):
        np.testing.assert_allclose(seen, wanted, atol=1e-6)


def test_first_in_mid_unroll_equals_a_fresh_roll(
    lstm: Lstm, inputs: np.ndarray, state: tuple[tf.Tensor, tf.Tensor]
) -> None:
    """Case 52: what came before FIRST leaves no trace, and no gradient goes back past it."""
    first = np.zeros((LENGTH, BATCH), bool)
    first[3] = True
    all_inputs = tf.constant(inputs)
    with tf.GradientTape() as tape:
        tape.watch((all_inputs, state))
        outputs, last = lstm.unroll(all_inputs, tf.constant(first), state)
        total = tf.reduce_sum(outputs[3:])
    fresh_outputs, fresh_last = lstm.unroll(
        tf.constant(inputs[3:]), tf.constant(first[3:]), lstm.initial_state(BATCH)
    )
    np.testing.assert_allclose(outputs[3:], fresh_outputs, atol=1e-6)
    np.testing.assert_allclose(last, fresh_last, atol=1e-6)
    to_inputs, to_state = tape.gradient(total, (all_inputs, state))
    assert not to_inputs[:3].numpy().any()
    assert to_inputs[3:].numpy().all()
    assert not np.any(to_state)


def test_gradients_equal_finite_differences(
    lstm: Lstm, inputs: np.ndarray, state: tuple[tf.Tensor, tf.Tensor]
) -> None:
    """Through the loop, along a random direction of all weights together."""
    first = tf.constant(np.random.default_rng(3).random((LENGTH, BATCH)) < 0.2)
    weights = lstm.trainable_variables
    rng = np.random.default_rng(4)
    directions = [rng.standard_normal(weight.shape).astype(np.float32) for weight in weights]

    @tf.function(autograph=False)
    def loss() -> tf.Tensor:
        return tf.reduce_mean(tf.square(lstm.unroll(tf.constant(inputs), first, state)[0] - 0.5))

    with tf.GradientTape() as tape:
        value = loss()
    gradients = tape.gradient(value, weights)
    slope = sum(float(tf.reduce_sum(g * d)) for g, d in zip(gradients, directions, strict=True))
    losses = []
    for shift in (1e-2, -2e-2):
        for weight, direction in zip(weights, directions, strict=True):
            weight.assign_add(shift * direction)
        losses.append(float(loss()))
    assert slope == pytest.approx((losses[0] - losses[1]) / 2e-2, rel=1e-2)
