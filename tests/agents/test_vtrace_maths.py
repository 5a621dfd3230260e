"""V-trace against numbers worked out by hand and against a plain float64 recursion."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from seed_rl.agents.vtrace.maths import VtraceTargets, backward_recursion, vtrace


def column(*numbers: float) -> tf.Tensor:
    return tf.constant(numbers, tf.float32)[:, tf.newaxis]


def three_steps(
    ratios: tuple[float, ...] = (1.0, 1.0, 1.0),
    discounts: tuple[float, ...] = (0.5, 0.5, 0.5),
    weights: tuple[float, ...] = (1.0, 1.0, 1.0),
    **limits: float,
) -> VtraceTargets:
    """Rewards 1, 2, 3 and V = 10, 20, 30, 40: undiscounted differences are +1, -3, -7."""
    return vtrace(
        target_log_probs=tf.math.log(column(*ratios)) - 1.0,
        behaviour_log_probs=column(-1.0, -1.0, -1.0),
        discounts=column(*discounts),
        rewards=column(1.0, 2.0, 3.0),
        values=column(10.0, 20.0, 30.0),
        bootstrap_value=tf.constant([40.0]),
        weights=column(*weights),
        **limits,
    )


LIMITS = {"rho_bar": 2.0, "c_bar": 1.0, "pg_rho_bar": 3.0}
RATIOS = (4.0, 0.5, 2.5)  # over both limits, under all, over rho_bar but not pg_rho_bar


@pytest.mark.parametrize(
    ("arguments", "values", "advantages"),
    [
        # vs = the n-step returns: 3 + 40/2 = 23, 2 + 23/2 = 13.5, 1 + 13.5/2 = 7.75.
        pytest.param({}, (7.75, 13.5, 23.0), (-2.25, -6.5, -7.0), id="on policy"),
        # rho = 2, .5, 2, c = 1, .5, 1, so vs - V = 2 + -5/2, -1.5 + .5 * -14/2, -14.
        pytest.param(
            {"ratios": RATIOS, **LIMITS}, (9.5, 15.0, 16.0), (-4.5, -5.0, -17.5), id="clipped"
        ),
        # No ratio reaches its limit: rho = c = the ratios; vs - V = .5 - 3.25/4, -1.5 - 7/4, -7.
        pytest.param(
            {"ratios": (0.5, 0.5, 1.0)},
            (9.6875, 16.75, 23.0),
            (-0.3125, -3.25, -7.0),
            id="not clipped",
        ),
        # c = .5, .25, .5: vs - V = 2 - 3.25/4, -1.5 - 14/8, -14.
        pytest.param(
            {"ratios": RATIOS, "lambda_": 0.5, **LIMITS},
            (11.1875, 16.75, 16.0),
            (-1.875, -5.0, -17.5),
            id="lambda",
        ),
        # Row 2 is terminal: delta[1] = .5 * (2 - 20), and nothing of what follows gets back.
        pytest.param(
            {"ratios": RATIOS, "discounts": (0.5, 0.0, 0.5), **LIMITS},
            (7.5, 11.0, 16.0),
            (-10.5, -9.0, -17.5),
            id="discount 0",
        ),
        # Row 1 is the last of its episode: vs = V there, and row 0 bootstraps from it.
        pytest.param(
            {"ratios": RATIOS, "weights": (1.0, 0.0, 1.0), **LIMITS},
            (12.0, 20.0, 16.0),
            (3.0, 0.0, -17.5),
            id="weight 0",
        ),
    ],
)
def test_three_steps_by_hand(
    arguments: dict[str, object], values: tuple[float, ...], advantages: tuple[float, ...]
) -> None:
    """Case 32: T = 3, worked out on paper."""
    targets = three_steps(**arguments)
    np.testing.assert_allclose(targets.values[:, 0], values, rtol=1e-6)
    np.testing.assert_allclose(targets.advantages[:, 0], advantages, rtol=1e-6)


def test_on_policy_equals_n_step_return() -> None:
    """Case 32: with ratios of 1 the targets are the discounted rewards and the bootstrap."""
    rng = np.random.default_rng(1)
    length, batch_size, discount = 7, 3, 0.9
    rewards, values, log_probs = rng.standard_normal((3, length, batch_size)).astype(np.float32)
    bootstrap = rng.standard_normal(batch_size).astype(np.float32)
    targets = vtrace(
        log_probs,
        log_probs,
        tf.fill([length, batch_size], discount),
        rewards,
        values,
        bootstrap,
        tf.ones([length, batch_size]),
    )
    for t in range(length):
        expected = sum(discount ** (k - t) * rewards[k] for k in range(t, length))
        expected = expected + discount ** (length - t) * bootstrap
        np.testing.assert_allclose(targets.values[t], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(
            targets.advantages[t], expected - values[t], rtol=1e-5, atol=1e-5
        )


def reference(
    target_log_probs: np.ndarray,
    behaviour_log_probs: np.ndarray,
    discounts: np.ndarray,
    rewards: np.ndarray,
    values: np.ndarray,
    bootstrap_value: np.ndarray,
    weights: np.ndarray,
    limits: dict[str, float],
) -> tuple[np.ndarray, np.ndarray]:
    """The sum and products of equation 1 written out, one column and start row at a time."""
    length, batch_size = rewards.shape
    vs, advantages = np.zeros((length, batch_size)), np.zeros((length, batch_size))
    for b in range(batch_size):
        ratio = np.exp(target_log_probs[:, b] - behaviour_log_probs[:, b])
        v = np.append(values[:, b], bootstrap_value[b])
        for start in range(length):
            vs[start, b] = v[start]
            product = 1.0
            for t in range(start, length):
                if weights[t, b] == 0:
                    break
                rho = min(limits["rho_bar"], ratio[t])
                delta = rho * (rewards[t, b] + discounts[t, b] * v[t + 1] - v[t])
                vs[start, b] += product * delta
                product *= discounts[t, b] * limits["lambda_"] * min(limits["c_bar"], ratio[t])
        next_vs = np.append(vs[1:, b], bootstrap_value[b])
        rho = np.minimum(limits["pg_rho_bar"], ratio)
        advantages[:, b] = rho * (rewards[:, b] + discounts[:, b] * next_vs - values[:, b])
    return vs, advantages * weights


def test_random_batches_equal_a_float64_reference() -> None:
    """Case 32: 1,000 random batches with ends, truncations and weights. Error / largest < 1e-5."""
    rng = np.random.default_rng(2)
    compiled = tf.function(vtrace, autograph=False)
    shapes = ((1, 3), (2, 2), (5, 4), (13, 2), (20, 3))
    all_limits = (
        {"rho_bar": 1.0, "c_bar": 1.0, "pg_rho_bar": 1.0, "lambda_": 1.0},
        {"rho_bar": 2.5, "c_bar": 1.2, "pg_rho_bar": 1.7, "lambda_": 0.9},
    )
    for i in range(1000):
        length, batch_size = shapes[i % len(shapes)]
        limits = all_limits[i % len(all_limits)]
        target, behaviour = -rng.exponential(1.0, (2, length, batch_size))
        rewards, values = rng.normal(0, 3, (2, length, batch_size))
        kind = rng.choice(4, (length, batch_size), p=(0.6, 0.15, 0.15, 0.1))
        arguments = [
            array.astype(np.float32)
            for array in (
                target,
                behaviour,
                np.where(kind == 1, 0.0, 0.97),
                rewards,
                values,
                rng.normal(0, 3, batch_size),
                kind != 2,
            )
        ]
        targets = compiled(*arguments, **limits)
        expected = reference(*(array.astype(np.float64) for array in arguments), limits)
        for seen, wanted in zip((targets.values, targets.advantages), expected, strict=True):
            scale = max(np.abs(wanted).max(), 1e-3)
            assert np.abs(seen.numpy() - wanted).max() / scale < 1e-5, i


@pytest.mark.parametrize("truncated_at", [1, 3, 6])
def test_two_episodes_are_as_each_alone(truncated_at: int) -> None:
    """Case 98: the first is truncated, the second goes on to the end of the unroll."""
    rng = np.random.default_rng(3)
    length = 8
    target, behaviour, rewards, values = rng.standard_normal((4, length, 1)).astype(np.float32)
    bootstrap = np.float32([0.7])
    weights = np.ones((length, 1), np.float32)
    weights[truncated_at] = 0
    discounts = np.full((length, 1), 0.9, np.float32)

    both = vtrace(target, behaviour, discounts, rewards, values, bootstrap, weights)
    first, second = slice(0, truncated_at), slice(truncated_at + 1, length)
    for part, end_value in ((first, values[truncated_at]), (second, bootstrap)):
        alone = vtrace(
            target[part],
            behaviour[part],
            discounts[part],
            rewards[part],
            values[part],
            end_value,
            np.ones_like(weights[part]),
        )
        np.testing.assert_allclose(both.values[part], alone.values, rtol=1e-6)
        np.testing.assert_allclose(both.advantages[part], alone.advantages, rtol=1e-5)
    assert both.values[truncated_at] == values[truncated_at]
    assert both.advantages[truncated_at] == 0


def test_targets_are_constants() -> None:
    """Case 45: no gradient flows through the targets to anything."""
    inputs = [tf.constant(np.full((4, 2), x, np.float32)) for x in (-1.0, -2.0, 0.9, 1.0, 2.0)]
    bootstrap = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch([*inputs, bootstrap])
        targets = vtrace(*inputs, bootstrap, tf.ones([4, 2]))
        total = sum(tf.reduce_sum(part) for part in targets)
    assert tape.gradient(total, [*inputs, bootstrap]) == [None] * 6


@pytest.mark.parametrize("length", [1, 2, 3, 8, 21])
def test_backward_recursion(length: int) -> None:
    rng = np.random.default_rng(length)
    terms, decays = rng.standard_normal((2, length, 2))
    expected = np.zeros((length + 1, 2))
    for t in reversed(range(length)):
        expected[t] = terms[t] + decays[t] * expected[t + 1]
    seen = backward_recursion(tf.constant(terms), tf.constant(decays))
    np.testing.assert_allclose(seen, expected[:-1], rtol=1e-12, atol=1e-12)
