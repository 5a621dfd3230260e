"""The train step: one update, metrics, and what happens to numbers that are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from seed_rl import queued, specs
from seed_rl.agents import registry as agents
from seed_rl.experience import HostBatch
from seed_rl.inference import Inference
from seed_rl.optimizers import Optimizer
from seed_rl.specs import ArraySpec, EnvironmentSpecs
from seed_rl.training import DeviceBatch, Trainer
from seed_rl.types import StepType, Unrolls

LENGTH, BATCH_SIZE = 4, 3
ENVIRONMENT = EnvironmentSpecs(
    {"pose": (ArraySpec((2,), "float32"), ArraySpec((3,), "float32"))},
    ArraySpec((), "int32", 0, 2),
)


class Setup:
    def __init__(self, **options: Any) -> None:
        algorithm = agents.load("vtrace")
        config = algorithm.Config(
            unroll_length=LENGTH, batch_size=BATCH_SIZE, lstm_size=4, **options
        )
        self.agent: Any = algorithm.make(config, ENVIRONMENT, seed=1)
        self.optimizer = Optimizer(config, list(self.agent.trainable_variables), 1000)
        self.inference = Inference(self.agent, ENVIRONMENT, 2, 2)
        self.trainer = Trainer(
            self.agent,
            self.optimizer,
            BATCH_SIZE,
            queued.form(LENGTH, self.inference.step_specs, self.inference.state_specs),
        )

    def host_batch(self, seed: int = 0) -> HostBatch:
        rng = np.random.default_rng(seed)

        def fill(spec: ArraySpec, *leading: int) -> np.ndarray:
            shape = (*leading, *spec.shape)
            if spec.dtype == "float32":
                return rng.standard_normal(shape).astype(np.float32)
            return rng.integers(0, 3, shape).astype(spec.dtype)

        steps = [
            fill(spec, LENGTH + 1, BATCH_SIZE) for spec in specs.flatten(self.inference.step_specs)
        ]
        steps[0] = np.full((LENGTH + 1, BATCH_SIZE), StepType.MID, np.uint8)
        return HostBatch(
            steps,
            [fill(spec, BATCH_SIZE) for spec in specs.flatten(self.inference.state_specs)],
            rng.integers(0, 9, (LENGTH + 1, BATCH_SIZE)),
            np.array([17, 4, 23]),
            LENGTH * BATCH_SIZE,
        )

    def batch(self, seed: int = 0) -> DeviceBatch:
        return self.trainer.to_device(self.host_batch(seed))

    def weights(self) -> list[np.ndarray]:
        state = [variable.numpy() for variable in self.optimizer.variables]
        return [*(variable.numpy() for variable in self.agent.variables), *state]

    def policy(self) -> np.ndarray:
        """What inference says about a step that is always the same."""
        answers = self.inference(
            np.array([0, 1], np.int32),
            np.full(2, StepType.FIRST, np.uint8),
            np.zeros(2, np.float32),
            [np.ones((2, 2), np.float32), np.ones((2, 3), np.float32)],
            2,
        )
        return answers.step.extras["policy"]


@pytest.fixture(scope="module")
def setup() -> Setup:
    return Setup()


def poke(batch: HostBatch, setup: Setup, path: str, time: int, column: int, value: float) -> None:
    leaf = batch.steps[specs.paths(setup.inference.step_specs).index(path)]
    leaf[(time, column, *[0] * (leaf.ndim - 2))] = value


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


def test_inference_sees_the_new_weights(setup: Setup) -> None:
    """Case 72."""
    before_policy, before_weights = setup.policy(), setup.weights()
    for seed in range(3):
        scalars = setup.trainer(setup.batch(seed)).scalars
        assert scalars["applied"] == 1
    assert int(setup.optimizer.num_updates) == 3
    assert not same(setup.weights(), before_weights)
    assert np.abs(setup.policy() - before_policy).max() > 1e-4


def test_the_update_is_that_of_the_agents_loss() -> None:
    """The batch reaches the loss as it is: time-major, every field in its place."""
    setup = Setup(optimizer="rmsprop", clip_norm=0.0, learning_rate=1e-3)
    host = setup.host_batch(3)
    steps = specs.unflatten(setup.inference.step_specs, [tf.constant(leaf) for leaf in host.steps])
    state = specs.unflatten(
        setup.inference.state_specs, [tf.constant(leaf) for leaf in host.states]
    )
    variables = list(setup.agent.trainable_variables)
    with tf.GradientTape() as tape:
        loss = setup.agent.loss(Unrolls(steps.step, steps.action, steps.extras, state)).loss
    gradients = tape.gradient(loss, variables)
    before = [variable.numpy() for variable in variables]
    scalars = setup.trainer(setup.trainer.to_device(host)).scalars
    np.testing.assert_allclose(scalars["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(
        scalars["gradient_norm"], tf.linalg.global_norm(gradients), rtol=1e-4
    )
    for variable, old, gradient in zip(variables, before, gradients, strict=True):
        mean_square = 0.01 * np.square(gradient)
        expected = old - 1e-3 * gradient / np.sqrt(mean_square + 1e-2)
        np.testing.assert_allclose(variable, expected, atol=1e-6)


def test_metrics_are_plain_numbers(setup: Setup) -> None:
    scalars = setup.trainer(setup.batch()).scalars
    assert {"applied", "loss", "gradient_norm", "learning_rate", "entropy"} <= set(scalars)
    assert all(type(value) is float for value in scalars.values())
    assert np.isfinite(list(scalars.values())).all()


def test_a_batch_on_the_device_is_a_copy(setup: Setup) -> None:
    """The host's buffers are filled again at once."""
    host = setup.host_batch()
    batch = setup.trainer.to_device(host)
    wanted = [leaf.copy() for leaf in [*host.steps, *host.states]], host.versions.copy()
    for leaf in [*host.steps, *host.states, host.versions, host.env_ids]:
        leaf[...] = 77
    for leaf, before in zip(batch.leaves, wanted[0], strict=True):
        np.testing.assert_array_equal(leaf, before)
    np.testing.assert_array_equal(batch.versions, wanted[1])
    assert batch.env_ids.tolist() == [17, 4, 23]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("step/reward", np.nan),
        ("step/reward", np.inf),
        ("step/observation/pose/0", np.nan),
        ("step/observation/pose/1", -np.inf),
        ("extras/policy", -np.inf),
        ("extras/policy", np.nan),
    ],
)
def test_what_is_not_finite_is_skipped_and_named(setup: Setup, path: str, value: float) -> None:
    """Case 61: weights and optimizer stay bit for bit, and the culprit has a name."""
    host = setup.host_batch()
    poke(host, setup, path, 2, 1, value)
    if path == "extras/policy":
        poke(host, setup, "action", 2, 1, 0)
    batch = setup.trainer.to_device(host)
    before = setup.weights()
    scalars = setup.trainer(batch).scalars
    if path == "step/reward" and np.isinf(value):
        assert scalars["applied"] == 1  # clipped like any other
    else:
        assert scalars["applied"] == 0
        assert same(setup.weights(), before)
    text = setup.trainer.explain(batch)
    assert "environment 4" in text
    assert str(value) in text
    assert f"{path} at step 2 " in text
    # The network's own answers are not what an environment brought.
    assert ("brought" in text) == (not path.startswith("extras"))
    assert setup.trainer(setup.batch()).scalars["applied"] == 1


def test_numbers_that_arise_in_the_network_are_not_blamed_on_an_environment(setup: Setup) -> None:
    """Case 61."""
    text = setup.trainer.explain(setup.batch())
    assert "environment " not in text
    assert "arose in the network or the loss" in text


def test_a_state_that_is_not_finite_is_named(setup: Setup) -> None:
    """Case 61: it came of an earlier step of that environment."""
    host = setup.host_batch()
    host.states[0][2, 0] = np.nan
    batch = setup.trainer.to_device(host)
    assert setup.trainer(batch).scalars["applied"] == 0
    text = setup.trainer.explain(batch)
    assert "environment 23" in text
    assert "state" in text
