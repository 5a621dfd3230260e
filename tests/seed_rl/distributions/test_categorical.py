"""Distributions against float64 references and frequencies."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
import tensorflow as tf

from seed_rl import distributions
from seed_rl.distributions import Categorical, best, masked
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


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_values_and_gradients_are_finite_at_extreme_logits(scale: float) -> None:
    distribution = Categorical(3, "int64")
    logits = tf.constant(np.float32([[1, -1, 0], [-1, 1, 1], [1, 1, 1], [0, 0, -1]]) * scale)
    action = tf.constant([0, 1, 2, 2])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        values = (
            distribution.log_prob(logits, action),
            distribution.entropy(logits),
            distribution.kl(logits, logits[::-1]),
            distribution.kl(logits[::-1], logits),
        )
    for value in values:
        assert np.isfinite(value).all()
        assert np.isfinite(tape.gradient(value, logits)).all()
    np.testing.assert_array_equal(distribution.mode(logits), [0, 1, 0, 0])


MASK = np.array([[1, 1, 0, 1, 0], [0, 1, 0, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 1]])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64"])
def test_masked_actions_do_not_exist(dtype: str) -> None:
    """All is as of the categorical distribution over the rest, by scipy."""
    rng = np.random.default_rng(4)
    logits, other = (rng.normal(0, 3, (4, 5)).astype(np.float32) for _ in range(2))
    logits[0, 2] = 1e30  # masked
    distribution = Categorical(5, "int64")
    masked, other_masked = (
        distribution.masked(tf.constant(x), tf.constant(MASK.astype(dtype)))
        for x in (logits, other)
    )
    assert np.isfinite(masked).all()
    for row, mask in enumerate(MASK.astype(bool)):
        p, q = (scipy.special.softmax(x[row][mask].astype(np.float64)) for x in (logits, other))
        entropy, kl = scipy.stats.entropy(p), scipy.stats.entropy(p, q)
        assert float(distribution.entropy(masked)[row]) == pytest.approx(entropy, abs=1e-5)
        assert float(distribution.kl(masked, other_masked)[row]) == pytest.approx(kl, abs=1e-4)
        every = distribution.log_prob(tf.tile(masked[row : row + 1], [5, 1]), tf.range(5)).numpy()
        np.testing.assert_allclose(every[mask], np.log(p), atol=1e-5)
        assert (np.exp(every[~mask]) == 0).all()
        assert distribution.mode(masked)[row] == np.flatnonzero(mask)[p.argmax()]
        draws = distribution.sample(tf.tile(masked[row : row + 1], [20_000, 1]), SEED).numpy()
        counts = np.bincount(draws, minlength=5)
        assert (counts[~mask] == 0).all()
        np.testing.assert_allclose(counts[mask] / 20_000, p, atol=0.015)


def test_gradients_of_masked_actions_are_zeros_and_finite() -> None:
    rng = np.random.default_rng(5)
    distribution = Categorical(5, "int64")
    for scale in (1.0, 1e30):
        logits = tf.constant(scale * rng.normal(0, 1, (4, 5)).astype(np.float32))
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(logits)
            masked = distribution.masked(logits, MASK)
            values = (
                distribution.log_prob(masked, [0, 1, 2, 4]),
                distribution.entropy(masked),
                distribution.kl(masked, distribution.masked(logits[::-1], MASK)),
            )
        for value in values:
            assert np.isfinite(value).all()
            gradient = tape.gradient(value, logits).numpy()
            assert np.isfinite(gradient).all()
            if value is not values[-1]:  # in which each logit is in two rows
                assert (gradient[MASK == 0] == 0).all()


def test_a_mask_of_zeros_masks_nothing() -> None:
    logits = tf.constant([[1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(Categorical(3, "int64").masked(logits, [[0, 0, 0]]), logits)


def test_masked_actions_are_not_taken_while_a_network_is_broken() -> None:
    distribution = Categorical(3, "int64")
    logits = distribution.masked(tf.fill([100, 3], np.float32(np.nan)), [[0, 1, 0]])
    np.testing.assert_array_equal(distribution.sample(logits, SEED), 1)
    np.testing.assert_array_equal(distribution.mode(logits), 1)


@pytest.mark.parametrize(
    ("spec", "seen"),
    [
        (ArraySpec((), "float32"), r"action float32\[\]: .* maps them"),
        (ArraySpec((2,), "float32", -2, 2), r"action float32\[2\] in \[-2, 2\]: .* maps them"),
        (ArraySpec((2,), "float64", -1, 1), r"action float64\[2\]"),
        (ArraySpec((0,), "float32", -1, 1), r"action float32\[0\]"),
        (ArraySpec((3,), "int64", 0, 4), r"action int64\[3\] in \[0, 4\]: .* numbers its actions"),
        (ArraySpec((), "int64"), r"action int64\[\]:"),
        (
            {"a": ArraySpec((), "int64", 0, 1), "b": (ArraySpec((), "int64", 1, 4),)},
            r"b/0 int64\[\]",
        ),
        ((), "at least one action"),
    ],
)
def test_other_actions_are_refused(spec: Nest, seen: str) -> None:
    with pytest.raises(ValueError, match=f"action spec .*{seen}"):
        distributions.for_action(spec)


@pytest.mark.parametrize("broken", [-np.inf, -3e38, np.nan])
def test_a_broken_network_never_chooses_what_is_masked(broken: float) -> None:
    values = masked(tf.constant([[broken, 3.0, 2.0]]), tf.constant([[1, 0, 0]]))
    assert best(values).numpy().tolist() == [0]
