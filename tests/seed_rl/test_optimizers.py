"""The optimizer against numpy, and that nothing but finite numbers reaches the weights."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from seed_rl.optimizer_config import OptimizerConfig
from seed_rl.optimizers import Optimizer, Update

ADAM = OptimizerConfig(learning_rate=0.1, adam_epsilon=1e-3, clip_norm=2.0)
RMSPROP = dataclasses.replace(ADAM, optimizer="rmsprop", rmsprop_decay=0.9, rmsprop_epsilon=0.01)
TOTAL = 10


def make_variables() -> list[tf.Variable]:
    rng = np.random.default_rng(0)
    return [tf.Variable(rng.standard_normal(shape).astype(np.float32)) for shape in ((3, 2), (2,))]


def make_gradients(step: int) -> list[np.ndarray]:
    rng = np.random.default_rng(step + 1)
    return [rng.normal(0, 1.5, shape).astype(np.float32) for shape in ((3, 2), (2,))]


def compiled(optimizer: Optimizer) -> Callable[..., Update]:
    return tf.function(lambda loss, *gradients: optimizer.apply(loss, gradients), autograph=False)


def all_values(optimizer: Optimizer, variables: list[tf.Variable]) -> dict[str, np.ndarray]:
    """Everything that a checkpoint holds, by name."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = tf.train.Checkpoint(optimizer=optimizer, variables=variables)
        reader = tf.train.load_checkpoint(checkpoint.save(f"{folder}/values"))
        return {
            name: reader.get_tensor(name)
            for name in reader.get_variable_to_shape_map()
            if name.endswith("VARIABLE_VALUE")
        }


def numpy_update(config: OptimizerConfig, x: list[np.ndarray], num_steps: int) -> list[np.ndarray]:
    x = [part.astype(np.float64) for part in x]
    m, v = [np.zeros_like(part) for part in x], [np.zeros_like(part) for part in x]
    for step in range(num_steps):
        gradients = [gradient.astype(np.float64) for gradient in make_gradients(step)]
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
        rate = config.learning_rate * (1 - step / TOTAL if config.learning_rate_decay else 1)
        for i, gradient in enumerate(gradients):
            gradient = gradient * min(1, config.clip_norm / norm) if config.clip_norm else gradient
            if config.optimizer == "adam":
                beta_1 = config.adam_beta_1
                m[i] = beta_1 * m[i] + (1 - beta_1) * gradient
                v[i] = 0.999 * v[i] + 0.001 * gradient**2
                rate_i = rate * np.sqrt(1 - 0.999 ** (step + 1)) / (1 - beta_1 ** (step + 1))
                x[i] = x[i] - rate_i * m[i] / (np.sqrt(v[i]) + config.adam_epsilon)
            else:
                decay = config.rmsprop_decay
                v[i] = decay * v[i] + (1 - decay) * gradient**2
                x[i] = x[i] - rate * gradient / np.sqrt(v[i] + config.rmsprop_epsilon)
    return x


@pytest.mark.parametrize(
    "config",
    [ADAM, dataclasses.replace(ADAM, adam_beta_1=0.0), RMSPROP],
    ids=["adam", "adam without momentum", "rmsprop"],
)
@pytest.mark.parametrize("clip_norm", [2.0, 0.0])
@pytest.mark.parametrize("decay", [True, False])
def test_updates_equal_numpy(config: OptimizerConfig, clip_norm: float, decay: bool) -> None:
    config = dataclasses.replace(config, clip_norm=clip_norm, learning_rate_decay=decay)
    variables = make_variables()
    expected = numpy_update(config, [variable.numpy() for variable in variables], 5)
    optimizer = Optimizer(config, variables, TOTAL)
    apply = compiled(optimizer)
    for step in range(5):
        update = apply(tf.constant(1.0), *make_gradients(step))
        assert update.applied
        norm = np.sqrt(sum((gradient**2).sum() for gradient in make_gradients(step)))
        np.testing.assert_allclose(update.gradient_norm, norm, rtol=1e-6)
        rate = 0.1 * (1 - step / TOTAL) if decay else 0.1
        np.testing.assert_allclose(update.learning_rate, rate, rtol=1e-6)
    assert optimizer.num_updates == 5
    for variable, wanted in zip(variables, expected, strict=True):
        # Adam's 1 - 0.999 is rounded to float32.
        np.testing.assert_allclose(variable, wanted, atol=1e-5)


def test_learning_rate_ends_at_0() -> None:
    variables = make_variables()
    optimizer = Optimizer(ADAM, variables, 3)
    apply = compiled(optimizer)
    rates = [apply(tf.constant(0.0), *make_gradients(0)).learning_rate.numpy() for _ in range(5)]
    np.testing.assert_allclose(rates, [0.1, 0.2 / 3, 0.1 / 3, 0, 0], atol=1e-8)


@pytest.mark.parametrize("config", [ADAM, RMSPROP], ids=["adam", "rmsprop"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_changes_nothing(
    config: OptimizerConfig, bad: float, where: str
) -> None:
    """Case 61: neither weights nor the optimizer's own state see it, and the next update works."""
    variables = make_variables()
    optimizer = Optimizer(config, variables, TOTAL)
    apply = compiled(optimizer)
    apply(tf.constant(1.0), *make_gradients(0))
    before = all_values(optimizer, variables)

    loss, gradients = tf.constant(bad if where == "loss" else 1.0), make_gradients(1)
    if where == "gradient":
        gradients[1][0] = bad
    assert not apply(loss, *gradients).applied
    after = all_values(optimizer, variables)
    assert len(after) >= 5  # 2 weights, their slots, the counter
    for name, old in before.items():
        np.testing.assert_array_equal(after[name], old)

    assert apply(tf.constant(1.0), *make_gradients(1)).applied
    assert optimizer.num_updates == 2
    expected = numpy_update(config, [variable.numpy() for variable in make_variables()], 2)
    for variable, wanted in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable, wanted, rtol=1e-5, atol=1e-6)
    assert apply.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("config", [ADAM, RMSPROP], ids=["adam", "rmsprop"])
def test_a_restored_optimizer_goes_on_alike(config: OptimizerConfig, tmp_path: Path) -> None:
    """Cases 66 and 126: slots, the number of updates and so the learning rate continue."""
    variables = make_variables()
    optimizer = Optimizer(config, variables, TOTAL)
    apply = compiled(optimizer)
    for step in range(3):
        apply(tf.constant(1.0), *make_gradients(step))
    path = tf.train.Checkpoint(optimizer=optimizer, variables=variables).save(str(tmp_path / "c"))

    other_variables = make_variables()
    other = Optimizer(config, other_variables, TOTAL)
    checkpoint = tf.train.Checkpoint(optimizer=other, variables=other_variables)
    checkpoint.restore(path).assert_consumed()
    assert other.num_updates == 3
    other_apply = compiled(other)
    for step in range(3, 6):
        update = apply(tf.constant(1.0), *make_gradients(step))
        other_update = other_apply(tf.constant(1.0), *make_gradients(step))
        assert update.learning_rate == other_update.learning_rate
    for variable, other_variable in zip(variables, other_variables, strict=True):
        np.testing.assert_array_equal(variable, other_variable)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "sgd"},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"adam_beta_1": 1.0},
        {"adam_epsilon": -1.0},
        {"rmsprop_epsilon": 0.0},
        {"rmsprop_decay": 1.0},
        {"clip_norm": -1.0},
        {"clip_norm": float("inf")},
        # 0, 1 and infinite in float32, which would make the weights NaN.
        {"adam_epsilon": 1e-50},
        {"rmsprop_epsilon": 1e-39},
        {"learning_rate": 1e39},
        {"adam_beta_1": 1 - 1e-9},
        {"rmsprop_decay": 1 - 1e-9},
        {"clip_norm": 1e-50},
    ],
)
def test_wrong_options_are_named(options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"^--{name}=.*: wanted .*; the default is "):
        OptimizerConfig(**options)


@pytest.mark.parametrize("epsilon", [2.0**-126, 1e-30])
def test_the_least_epsilon_that_is_taken_divides_by_more_than_0(epsilon: float) -> None:
    variable = tf.Variable([1.0, 1.0])
    config = OptimizerConfig(adam_epsilon=epsilon, clip_norm=0.0, learning_rate_decay=False)
    optimizer = Optimizer(config, [variable], 10)
    for _ in range(3):  # the first weight has no gradient at all
        compiled(optimizer)(tf.constant(1.0), tf.constant([0.0, 1.0]))
    assert variable[0] == 1
    assert 0 < variable[1] < 1


def test_the_error_says_what_float32_holds() -> None:
    """Field, value seen, value wanted."""
    with pytest.raises(ValueError, match=r"^--adam_epsilon=1e-50: wanted a number above 0, from 1"):
        OptimizerConfig(adam_epsilon=1e-50)


def test_total_updates_must_be_positive() -> None:
    with pytest.raises(ValueError, match="total_updates: wanted at least 1, saw 0"):
        Optimizer(ADAM, make_variables(), 0)
