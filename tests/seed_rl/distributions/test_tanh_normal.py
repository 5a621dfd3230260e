"""The tanh-normal distribution against scipy, numerical integrals and what is drawn from it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
import tensorflow as tf

from seed_rl import distributions
from seed_rl.distributions import TanhNormal
from seed_rl.specs import ArraySpec

SEED = tf.constant([3, 4], tf.int32)
EXTREMES = np.float32([-np.inf, -1e30, -100, -20, -1, 0, 1, 20, 100, 1e30, np.inf])


def normals(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and deviations as the class's docstring says, in float64."""
    mean, scale = np.split(parameters.astype(np.float64), 2, axis=-1)
    offset = scipy.special.logit(np.log10(0.6 / 0.1))
    return 4 * np.tanh(mean / 40), 0.1 * 10 ** scipy.special.expit(scale + offset)


def random_parameters(*shape: int) -> np.ndarray:
    """Of means as far out as they get, too."""
    numbers = np.random.default_rng(0).normal(0, 2, shape).astype(np.float32)
    numbers[..., : shape[-1] // 2] *= 10
    return numbers


def test_the_first_policy() -> None:
    mean, scale = normals(np.zeros(2))
    assert (mean, scale) == (0, pytest.approx(0.6))


def test_log_prob() -> None:
    parameters = random_parameters(50, 4, 6)
    mean, scale = normals(parameters)
    number = np.random.default_rng(1).normal(mean, scale)
    action = np.tanh(number).astype(np.float32)
    exact = action.astype(np.float64)
    density = scipy.stats.norm.logpdf(np.arctanh(exact), mean, scale) - np.log1p(-(exact**2))
    seen = TanhNormal((3,)).log_prob(tf.constant(parameters), tf.constant(action))
    assert np.abs(number).max() > 5, "none was near the bounds"
    np.testing.assert_allclose(seen, density.sum(axis=-1), rtol=1e-5, atol=2e-4)


def test_probabilities_of_a_number_add_up_to_1() -> None:
    parameters = random_parameters(20, 2)
    edges = np.tanh(np.linspace(-8, 8, 100_001))
    middle, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    for row in parameters:
        log_prob = TanhNormal(()).log_prob(
            tf.constant(np.tile(row, (len(middle), 1))), tf.constant(middle.astype(np.float32))
        )
        assert np.sum(np.exp(log_prob, dtype=np.float64) * width) == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("bound", [-1.0, 1.0])
def test_log_prob_is_finite_at_the_bounds(bound: float) -> None:
    """Case 103: at +-1, +-(1 - 1e-8), and tanh of +-20, whatever the parameters are."""
    grid = np.stack(np.meshgrid(EXTREMES, EXTREMES), axis=-1).reshape(-1, 2)
    parameters = tf.constant(grid)
    for action in (bound, bound * (1 - 1e-8), np.tanh(bound * 20), bound * (1 - 1e-6), 0.0):
        actions = tf.fill([len(grid)], np.float32(action))
        with tf.GradientTape() as tape:
            tape.watch([parameters, actions])
            log_prob = TanhNormal(()).log_prob(parameters, actions)
        to_parameters, to_actions = tape.gradient(log_prob, [parameters, actions])
        assert np.isfinite(log_prob).all()
        assert np.isfinite(to_parameters).all()
        assert to_actions is None
    # As of the float32 next to it.
    beside = np.nextafter(np.float32(bound), np.float32(0))
    both = TanhNormal(()).log_prob(parameters[:2], tf.constant([bound, beside], tf.float32))
    alone = TanhNormal(()).log_prob(parameters[:2], tf.constant([beside, beside], tf.float32))
    np.testing.assert_array_equal(both, alone)


def test_gradient_of_log_prob() -> None:
    """Against finite differences of the float64 reference."""
    parameters = random_parameters(30, 2)
    action = np.tanh(np.random.default_rng(1).normal(*normals(parameters))).astype(np.float32)

    def reference(parameters: np.ndarray) -> np.ndarray:
        log_prob = scipy.stats.norm.logpdf(
            np.arctanh(action.astype(np.float64)), *normals(parameters)
        )
        return log_prob[:, 0]

    tensor = tf.constant(parameters)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        log_prob = TanhNormal(()).log_prob(tensor, tf.constant(action[:, 0]))
    gradient = tape.gradient(log_prob, tensor).numpy()
    for i in range(2):
        step = 1e-4 * np.eye(2)[i]
        high, low = reference(parameters + step), reference(parameters - step)
        np.testing.assert_allclose(gradient[:, i], (high - low) / 2e-4, rtol=2e-3, atol=2e-3)


def test_entropy() -> None:
    """Against adaptive quadrature, over the whole range of means and deviations."""
    means, scales = np.meshgrid([-300, -30, -5, 0, 10, 20, 300], [-30, -5, -2, 0, 1, 30])
    parameters = np.stack([means, scales], axis=-1).reshape(-1, 2).astype(np.float32)
    seen = TanhNormal(()).entropy(tf.constant(parameters))

    def log_slope(number: float) -> float:
        return 2 * (np.log(2) - abs(number) - np.log1p(np.exp(-2 * abs(number))))

    for row, entropy in zip(parameters, seen, strict=True):
        normal = scipy.stats.norm(*(float(x[0]) for x in normals(row)))
        expected = normal.entropy() + normal.expect(log_slope, epsabs=1e-10)
        assert float(entropy) == pytest.approx(expected, abs=1e-5)


def test_the_most_uniform_has_the_largest_entropy() -> None:
    scales = tf.stack([tf.zeros(200), tf.linspace(-8.0, 8.0, 200)], axis=-1)
    entropy = TanhNormal(()).entropy(scales).numpy()
    assert np.log(2) - 0.01 < entropy.max() < np.log(2)
    assert 0.8 < normals(scales.numpy()[entropy.argmax()])[1][0] < 0.95


def test_kl() -> None:
    parameters = random_parameters(40, 4)
    other = random_parameters(60, 4)[20:]
    (mean, scale), (other_mean, other_scale) = normals(parameters), normals(other)
    expected = np.log(other_scale / scale) - 0.5
    expected += (scale**2 + (mean - other_mean) ** 2) / (2 * other_scale**2)
    distribution = TanhNormal((2,))
    seen = distribution.kl(tf.constant(parameters), tf.constant(other))
    np.testing.assert_allclose(seen, expected.sum(axis=-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(distribution.kl(parameters, parameters), np.zeros(40))


def test_kl_is_the_mean_difference_of_log_probs() -> None:
    """By the definition, in the space of actions."""
    distribution = TanhNormal((2,))
    one, other = (
        tf.tile(tf.constant([x]), [200_000, 1])
        for x in ([3.0, -10.0, 0.2, 0.0], [10.0, 0.0, 1.0, 1.0])
    )
    action = distribution.sample(one, SEED)
    difference = distribution.log_prob(one, action) - distribution.log_prob(other, action)
    assert np.mean(difference) == pytest.approx(float(distribution.kl(one[0], other[0])), rel=0.02)
    entropy = -np.mean(distribution.log_prob(one, action))
    assert entropy == pytest.approx(float(distribution.entropy(one[0])), abs=0.02)


def test_samples() -> None:
    """Kolmogorov-Smirnov: before tanh, they are the normal numbers asked for."""
    row = np.float32([5, -10, 1, -2])
    mean, scale = normals(row)
    action = TanhNormal((2,)).sample(tf.tile(tf.constant([row]), [20_000, 1]), SEED).numpy()
    for i in range(2):
        numbers = np.arctanh(action[:, i].astype(np.float64))
        assert scipy.stats.kstest(numbers, scipy.stats.norm(mean[i], scale[i]).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(action.T)[0, 1]) < 0.03


def test_samples_depend_on_the_seed_only() -> None:
    parameters = tf.zeros([8, 6])
    one, same, other = (
        TanhNormal((3,)).sample(parameters, seed).numpy() for seed in (SEED, SEED, SEED + 1)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).all()
    assert len(np.unique(one)) == one.size


def test_samples_and_mode_never_reach_the_bounds() -> None:
    """Case 103: and not with NaN either, where the weights are broken (case 61)."""
    for value in (*EXTREMES, np.nan):
        parameters = tf.fill([1000, 2], np.float32(value))
        for action in (
            TanhNormal(()).sample(parameters, SEED).numpy(),
            TanhNormal(()).mode(parameters).numpy(),
        ):
            assert action.dtype == np.float32
            assert (np.abs(action) < 1).all()


def test_mode_is_the_median() -> None:
    parameters = tf.constant([[5.0, -10.0, 0.0, 1.0]])
    mode = TanhNormal((2,)).mode(parameters)[0]
    action = TanhNormal((2,)).sample(tf.tile(parameters, [50_000, 1]), SEED)
    np.testing.assert_allclose(np.mean(action > mode, axis=0), 0.5, atol=0.01)


def test_gradients_at_the_bounds_of_the_parameters() -> None:
    grid = np.stack(np.meshgrid(EXTREMES, EXTREMES), axis=-1).reshape(-1, 2)
    parameters = tf.constant(grid)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(parameters)
        other = parameters[::-1]
        entropy = TanhNormal(()).entropy(parameters)
        kl = TanhNormal(()).kl(parameters, other)
    for value in (entropy, kl):
        assert np.isfinite(value).all()
        assert np.isfinite(tape.gradient(value, parameters)).all()


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_shapes(shape: tuple[int, ...]) -> None:
    distribution = distributions.for_action(ArraySpec(shape, "float32", -1, 1))
    size = int(np.prod(shape))
    assert distribution == TanhNormal(shape)
    assert distribution.num_parameters == 2 * size
    assert distribution.num_choices == 0
    parameters = tf.constant(random_parameters(5, 4, 2 * size))
    action = distribution.sample(parameters, SEED)
    assert action.shape == (5, 4, *shape)
    assert distribution.mode(parameters).shape == (5, 4, *shape)
    one_by_one = tf.add_n(
        [
            TanhNormal(()).log_prob(
                tf.gather(parameters, [i, size + i], axis=-1),
                tf.reshape(action, [5, 4, size])[..., i],
            )
            for i in range(size)
        ]
    )
    np.testing.assert_allclose(distribution.log_prob(parameters, action), one_by_one, rtol=1e-4)
