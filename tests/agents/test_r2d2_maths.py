"""The maths of R2D2 against plain float64 references and numbers worked out by hand."""

from __future__ import annotations

import decimal

import numpy as np
import pytest
import tensorflow as tf

from seed_rl.agents.r2d2 import maths
from seed_rl.agents.r2d2.maths import Differences, Transitions
from seed_rl.types import StepType

FIRST, MID, TERMINATED, TRUNCATED = StepType
EPSILONS = (0.0, 1e-3, 1e-2, 0.5)
MAGNITUDES = np.geomspace(1e-6, 1e6, 2001)
BOTH_SIGNS = np.concatenate([-MAGNITUDES, MAGNITUDES])


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 2e-6)])
def test_rescaling_round_trip(epsilon: float, dtype: str, tolerance: float) -> None:
    x = BOTH_SIGNS.astype(dtype)
    for one, other in (
        (maths.rescale, maths.unrescale),
        (maths.unrescale, maths.rescale),
    ):
        back = other(one(tf.constant(x), epsilon), epsilon)
        assert back.dtype == dtype
        np.testing.assert_allclose(back, x, rtol=tolerance)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_rescaling_equals_the_formulas_of_the_paper(epsilon: float) -> None:
    """As they are written in Pohlen et al. 2018, in 60 digits."""
    with decimal.localcontext() as context:
        context.prec = 60
        e, one = decimal.Decimal(epsilon), decimal.Decimal(1)
        for x in BOTH_SIGNS[::97]:
            size, sign = abs(decimal.Decimal(x)), int(np.sign(x))
            rescaled = sign * ((size + one).sqrt() - one + e * size)
            if epsilon:
                y = ((one + 4 * e * (size + one + e)).sqrt() - one) / (2 * e)
            else:
                y = size + one
            unrescaled = sign * (y * y - one)
            for function, expected in (
                (maths.rescale, rescaled),
                (maths.unrescale, unrescaled),
            ):
                seen = function(tf.constant(x, tf.float64), epsilon)
                assert float(seen) == pytest.approx(float(expected), rel=1e-14)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_rescaling_of_zero_and_of_the_very_large(epsilon: float) -> None:
    for function in (maths.rescale, maths.unrescale):
        assert function(tf.constant(0.0), epsilon) == 0.0
    x = tf.constant([1e12, 1e15], tf.float64)
    back = maths.unrescale(maths.rescale(x, epsilon), epsilon)
    np.testing.assert_allclose(back, x, rtol=1e-9)


def random_step_types(rng: np.random.Generator, num_rows: int, batch_size: int) -> np.ndarray:
    """FIRST follows an end, and nothing else does; some episodes have no step between."""
    step_type = np.full((num_rows, batch_size), MID, np.uint8)
    drawn = rng.choice([MID, TERMINATED, TRUNCATED], step_type.shape, p=[0.7, 0.15, 0.15])
    ended = rng.random(batch_size) < 0.2
    for t in range(num_rows):
        step_type[t] = np.where(ended, FIRST, drawn[t])
        ended = step_type[t] >= TERMINATED
    return step_type


def brute_force_return(
    step_type: np.ndarray, reward: np.ndarray, values: np.ndarray, t: int, n: int, gamma: float
) -> float:
    """Walks on from row t of one column, and bootstraps from the row where it stops."""
    total, scale, row = 0.0, 1.0, t
    while row - t < n and row + 1 < len(step_type) and step_type[row + 1] != FIRST:
        row += 1
        total += scale * reward[row]
        if step_type[row] == TERMINATED:
            return total
        scale *= gamma
    return total + scale * values[row]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-14), ("float32", 1e-6)])
def test_n_step_returns_by_brute_force(dtype: str, tolerance: float) -> None:
    """1,000 random batches with ends and truncations; errors relative to the largest return."""
    rng = np.random.default_rng(1)
    compiled = tf.function(
        lambda step_type, reward, values, n, gamma: maths.n_step_returns(
            maths.transitions(step_type, reward, gamma), values, n
        ),
        autograph=False,
    )
    shapes = ((2, 3, 1), (3, 2, 5), (9, 4, 3), (21, 2, 5), (14, 3, 20))  # rows, batch, n
    for i in range(1000):
        num_rows, batch_size, n = shapes[i % len(shapes)]
        gamma = (0.997, 0.5)[i % 2]
        step_type = random_step_types(rng, num_rows, batch_size)
        reward, values = rng.normal(0, 3, (2, num_rows, batch_size)).astype(dtype)
        seen = compiled(step_type, reward, values, n, gamma)
        expected = np.array(
            [
                [
                    brute_force_return(*(x[:, b] for x in (step_type, reward, values)), t, n, gamma)
                    for b in range(batch_size)
                ]
                for t in range(num_rows - 1)
            ]
        )
        assert seen.dtype == dtype
        assert np.abs(seen - expected).max() <= tolerance * np.abs(expected).max(), i


def column(*numbers: float) -> tf.Tensor:
    return tf.constant(numbers, tf.float32)[:, tf.newaxis]


@pytest.mark.parametrize(
    ("step_types", "expected"),
    [
        # 2 rewards and V, and in the last row only 1: 2 + 3/2 + 30/4, 3 + 4/2 + 40/4, 4 + 40/2.
        pytest.param((MID, MID, MID, MID), (11.0, 15.0, 24.0), id="within an episode"),
        # Row 2 ends it for good: 2 + 3/2, 3; what leads to FIRST keeps its V.
        pytest.param((MID, MID, TERMINATED, FIRST), (3.5, 3.0, 30.0), id="terminated"),
        # Row 2 stands for what was cut off: 2 + 3/2 + 30/4, 3 + 30/2.
        pytest.param((MID, MID, TRUNCATED, FIRST), (11.0, 18.0, 30.0), id="truncated"),
        # 2 + 20/2, no transition, and the next episode: 4 + 40/2.
        pytest.param((MID, TRUNCATED, FIRST, MID), (12.0, 20.0, 24.0), id="truncated early"),
        pytest.param((TERMINATED, FIRST, TERMINATED, FIRST), (10.0, 3.0, 30.0), id="one step"),
    ],
)
def test_two_step_returns_by_hand(
    step_types: tuple[StepType, ...], expected: tuple[float, ...]
) -> None:
    """Cases 98 and 99: rewards 1, 2, 3, 4 of rows with V = 10, 20, 30, 40; discount 1/2."""
    step_type = tf.constant([[int(kind)] for kind in step_types], tf.uint8)
    steps = maths.transitions(step_type, column(1.0, 2.0, 3.0, 4.0), 0.5)
    returns = maths.n_step_returns(steps, column(10.0, 20.0, 30.0, 40.0), 2)
    np.testing.assert_allclose(returns[:, 0], expected)


def test_double_q_chooses_by_the_online_and_values_by_the_target_network() -> None:
    online = tf.constant([[1.0, 5.0, 2.0], [9.0, 0.0, 3.0]])
    target = tf.constant([[70.0, 10.0, 20.0], [30.0, 90.0, 80.0]])
    np.testing.assert_array_equal(maths.double_q(online, target), [10.0, 30.0])
    rng = np.random.default_rng(3)
    online, target = rng.standard_normal((2, 7, 4, 6))
    seen = maths.double_q(tf.constant(online), tf.constant(target))
    for t, b in np.ndindex(7, 4):
        assert seen[t, b] == target[t, b, list(online[t, b]).index(max(online[t, b]))]


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_q_of_the_action(dtype: str) -> None:
    q_values = np.random.default_rng(4).standard_normal((5, 3, 4))
    action = np.arange(15).reshape(5, 3).astype(dtype) % 4
    seen = maths.q_of(tf.constant(q_values), tf.constant(action))
    for t, b in np.ndindex(5, 3):
        assert seen[t, b] == q_values[t, b, action[t, b]]


def test_temporal_differences_equal_a_float64_reference() -> None:
    """h(G) - Q, with G of values that are outputs of h."""
    rng = np.random.default_rng(5)
    num_rows, batch_size, n, gamma, epsilon = 12, 6, 3, 0.9, 1e-2
    step_type = random_step_types(rng, num_rows, batch_size)
    reward, values = rng.normal(0, 3, (2, num_rows, batch_size))
    q = rng.normal(0, 3, (num_rows - 1, batch_size))
    steps = maths.transitions(tf.constant(step_type), tf.constant(reward), gamma)
    differences = maths.temporal_differences(steps, tf.constant(q), tf.constant(values), n, epsilon)
    seen = Differences(*(part.numpy() for part in differences))

    root = np.sqrt(1 + 4 * epsilon * (np.abs(values) + 1 + epsilon))
    in_rewards = np.sign(values) * (((root - 1) / (2 * epsilon)) ** 2 - 1)
    for t, b in np.ndindex(num_rows - 1, batch_size):
        x = brute_force_return(step_type[:, b], reward[:, b], in_rewards[:, b], t, n, gamma)
        target = np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + epsilon * x
        assert seen.targets[t, b] == pytest.approx(target, rel=1e-11, abs=1e-11)
        assert seen.errors[t, b] == pytest.approx(target - q[t, b], rel=1e-11, abs=1e-11)
        assert seen.weights[t, b] == (step_type[t + 1, b] != FIRST)


@pytest.mark.parametrize("eta", [0.0, 0.9, 1.0])
def test_priorities_mix_the_largest_and_the_mean_error(eta: float) -> None:
    rng = np.random.default_rng(6)
    errors = rng.normal(0, 2, (9, 50))
    weights = (rng.random(errors.shape) < 0.6).astype(np.float64)
    weights[:, 0] = 0.0
    weights[:, 1] = 1.0
    differences = Differences(*map(tf.constant, (errors, np.zeros_like(errors), weights)))
    seen = maths.priorities(differences, eta).numpy()
    assert seen[0] == 0.0
    for b in range(1, errors.shape[1]):
        sizes = [abs(errors[t, b]) for t in range(9) if weights[t, b]]
        if sizes:
            expected = eta * max(sizes) + (1 - eta) * sum(sizes) / len(sizes)
            assert seen[b] == pytest.approx(expected, rel=1e-12), b


def test_only_q_has_a_gradient() -> None:
    """Case 45: neither targets nor priorities pass one on."""
    values, q = tf.constant(np.ones((4, 2))), tf.constant(np.zeros((3, 2)))
    rewards = tf.constant(np.ones((3, 2)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([values, q, rewards])
        steps = Transitions(rewards, 0.9 * rewards, rewards > 0)
        differences = maths.temporal_differences(steps, q, values, 2, 1e-3)
        priorities = maths.priorities(differences, 0.9)
    assert tape.gradient(differences.targets, [values, rewards, q]) == [None] * 3
    assert tape.gradient(priorities, [values, rewards, q]) == [None] * 3
    assert tape.gradient(differences.errors, [values, rewards]) == [None] * 2
    np.testing.assert_array_equal(tape.gradient(differences.errors, q), -np.ones((3, 2)))
