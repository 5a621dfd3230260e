"""Distributions against float64 references and frequencies."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from seed_rl import distributions
from seed_rl.distributions import Categorical
from seed_rl.specs import ArraySpec, Nest

SEED = tf.constant([3, 4], tf.int32)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 3, (6, 5, 7)).astype(np.float32)


def test_log_prob(logits: np.ndarray) -> None:
    for dtype in ("uint8", "int32", "int64"):
        action = np.random.default_rng(1).integers(0, 7, (6, 5)).astype(dtype)
        expected = np.take_along_axis(
            log_softmax(logits), action[..., np.newaxis].astype(np.int64), axis=-1
        )[..., 0]
        seen = Categorical(7, dtype).log_prob(logits, action)
        np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-6)


def test_gradient_of_log_prob_is_one_hot_minus_probabilities(logits: np.ndarray) -> None:
    parameters = tf.constant(logits[0])
    action = tf.constant([0, 1, 2, 3, 6])
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        log_prob = Categorical(7, "int64").log_prob(parameters, action)
    expected = np.eye(7)[action.numpy()] - np.exp(log_softmax(logits[0]))
    np.testing.assert_allclose(tape.gradient(log_prob, parameters), expected, atol=1e-6)


def test_entropy(logits: np.ndarray) -> None:
    distribution = Categorical(7, "int64")
    log_probs = log_softmax(logits)
    expected = -(np.exp(log_probs) * log_probs).sum(axis=-1)
    np.testing.assert_allclose(distribution.entropy(logits), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(distribution.entropy(tf.zeros([7])), np.log(7), rtol=1e-6)


def test_kl(logits: np.ndarray) -> None:
    distribution = Categorical(7, "int64")
    other = np.random.default_rng(2).normal(0, 3, logits.shape).astype(np.float32)
    p, q = log_softmax(logits), log_softmax(other)
    expected = (np.exp(p) * (p - q)).sum(axis=-1)
    np.testing.assert_allclose(distribution.kl(logits, other), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(distribution.kl(logits, logits), 0, atol=1e-6)


def test_samples_have_the_probabilities_asked_for() -> None:
    """Chi squared of 60,000 draws, below its 99.9 % quantile for 4 degrees of freedom."""
    log_probs = np.log(np.float32([0.5, 0.25, 0.15, 0.09, 0.01]))
    num_draws = 60_000
    action = Categorical(5, "int64").sample(np.tile(log_probs + 8, (num_draws, 1)), SEED)
    expected = num_draws * np.exp(log_probs)
    chi_squared = ((np.bincount(action, minlength=5) - expected) ** 2 / expected).sum()
    assert chi_squared < 18.5


def test_samples_depend_on_the_seed_and_the_row() -> None:
    distribution = Categorical(1000, "int64")
    logits = tf.zeros([8, 1000])
    action = distribution.sample(logits, SEED).numpy()
    np.testing.assert_array_equal(action, distribution.sample(logits, SEED))
    assert len(set(action)) > 1
    assert (action != distribution.sample(logits, SEED + 1).numpy()).any()


def test_impossible_actions_are_never_drawn_and_nan_stays_in_range() -> None:
    """Case 61: an actor gets a legal action even while the weights are broken."""
    distribution = Categorical(3, "int64")
    logits = tf.tile([[-np.inf, 0.0, -np.inf]], [1000, 1])
    np.testing.assert_array_equal(distribution.sample(logits, SEED), 1)
    action = distribution.sample(tf.fill([1000, 3], np.float32(np.nan)), SEED).numpy()
    assert ((action >= 0) & (action < 3)).all()


def test_mode_and_dtype() -> None:
    for dtype in ("int32", "int64", "uint8"):
        distribution = distributions.for_action(ArraySpec((), dtype, 0, 2))
        assert distribution.num_parameters == 3
        logits = tf.constant([[0.0, 2.0, 1.0], [5.0, 2.0, 1.0]])
        mode = distribution.mode(logits)
        assert mode.dtype.name == dtype
        assert distribution.sample(logits, SEED).dtype.name == dtype
        np.testing.assert_array_equal(mode, [1, 0])


@pytest.mark.parametrize(
    "spec",
    [
        ArraySpec((), "float32", -1, 1),
        ArraySpec((3,), "int64", 0, 4),
        ArraySpec((), "int64"),
        ArraySpec((), "int64", 1, 4),
        (ArraySpec((), "int64", 0, 4), ArraySpec((), "int64", 0, 4)),
    ],
)
def test_other_actions_are_refused(spec: Nest) -> None:
    with pytest.raises(ValueError, match=r"action spec .*wanted one integer from 0 to a maximum"):
        distributions.for_action(spec)
