"""The dueling head: two streams of their own, and a mean advantage of zero."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from seed_rl.agents.networks.dueling import DuelingHead


def make(hidden_size: int = 16, num_actions: int = 5, seed: int = 1) -> DuelingHead:
    return DuelingHead(7, hidden_size, num_actions, np.random.default_rng(seed))


def features(num_rows: int = 32) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((num_rows, 7)).astype(np.float32)


def test_q_is_value_plus_advantage_above_its_mean() -> None:
    """Against equation 9 of Wang et al. 2016 in float64, from the head's own weights."""
    head = make()
    weights = {v.name.removesuffix(":0"): v.numpy().astype(np.float64) for v in head.variables}
    assert weights["value_hidden/kernel"].shape == (7, 16)
    assert weights["advantage_hidden/kernel"].shape == (7, 16)
    assert len(weights) == 8

    def stream(name: str) -> np.ndarray:
        hidden = features() @ weights[f"{name}_hidden/kernel"] + weights[f"{name}_hidden/bias"]
        return np.maximum(hidden, 0) @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    value, advantage = stream("value"), stream("advantage")
    expected = value + advantage - advantage.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(head(features()), expected, rtol=1e-5, atol=1e-6)


def test_the_mean_advantage_is_zero() -> None:
    """So the mean of Q is V, whatever the advantage stream says of all actions alike."""
    head = make()
    mean = tf.reduce_mean(head(features()), axis=-1)
    (bias,) = (v for v in head.variables if v.name.startswith("advantage/bias"))
    before = head(features())
    bias.assign_add(3.0 * tf.ones_like(bias))
    np.testing.assert_allclose(head(features()), before, atol=1e-5)
    (value,) = (v for v in head.variables if v.name.startswith("value/bias"))
    value.assign_add([2.0])
    np.testing.assert_allclose(tf.reduce_mean(head(features()), axis=-1), mean + 2.0, atol=1e-5)


def test_gradient_reaches_both_streams() -> None:
    head = make()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(head(features())[:, 0])
    gradients = tape.gradient(loss, head.variables)
    for variable, gradient in zip(head.variables, gradients, strict=True):
        assert np.any(gradient), variable.name


@pytest.mark.parametrize("num_actions", [1, 18])
def test_first_q_values_are_small(num_actions: int) -> None:
    q_values = make(hidden_size=512, num_actions=num_actions)(features())
    assert q_values.shape == (32, num_actions)
    assert np.abs(q_values).max() < 1.0
