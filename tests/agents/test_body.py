"""What reaches the heads, and that acting and learning compute the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from seed_rl import specs
from seed_rl.agents.networks.body import Body
from seed_rl.agents.networks.config import NetworkConfig
from seed_rl.specs import ArraySpec, EnvironmentSpecs
from seed_rl.types import StepInputs, StepType, Unrolls

ACTION = ArraySpec((), "int64", 0, 4)
IMAGES = EnvironmentSpecs(ArraySpec((36, 40, 2), "uint8"), ACTION)
VECTORS = EnvironmentSpecs(
    {"position": ArraySpec((3,), "float32"), "speed": ArraySpec((), "float32")}, ACTION
)


def make(network: str, lstm_size: int) -> tuple[Body, EnvironmentSpecs]:
    environment = VECTORS if network == "mlp" else IMAGES
    return Body(
        environment, NetworkConfig(network, lstm_size), np.random.default_rng(0)
    ), environment


@pytest.mark.parametrize("lstm_size", [0, 8])
@pytest.mark.parametrize("network", ["shallow", "nature", "deep", "mlp"])
def test_steps_equal_unroll(
    network: str, lstm_size: int, random_unrolls: Callable[..., Unrolls]
) -> None:
    """One by one, as inference runs, or all at once, as training does: equal to 1e-5."""
    body, environment = make(network, lstm_size)
    state = specs.map_nest(lambda part: part + 0.5, body.initial_state(3))
    step = random_unrolls(environment, 6, 3, seed=1).step
    assert (step.step_type[1:] == StepType.FIRST).numpy().any()
    features, last = body.unroll(step, state)
    assert features.shape == (6, 3, body.output_size)
    for t in range(6):
        inputs = specs.map_nest(lambda x: x[t], step)  # noqa: B023
        output, state = body.step(inputs, state)
        np.testing.assert_allclose(output, features[t], rtol=1e-5, atol=1e-5)
    for seen, wanted in zip(specs.flatten(state), specs.flatten(last), strict=True):
        np.testing.assert_allclose(seen, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lstm_size", [0, 8])
def test_last_action_and_reward_are_inputs_except_at_first(lstm_size: int) -> None:
    """Case 87: the output depends on both, but at FIRST on neither."""
    body, _ = make("mlp", lstm_size)

    def features(step_type: StepType, action: int, reward: float) -> np.ndarray:
        observation = {"position": tf.ones([1, 3]), "speed": tf.ones([1])}
        inputs = StepInputs(
            tf.constant([step_type], tf.uint8),
            tf.constant([reward]),
            observation,
            tf.constant([action], tf.int64),
        )
        return body.step(inputs, body.initial_state(1))[0].numpy()

    for step_type in (StepType.MID, StepType.TERMINATED, StepType.TRUNCATED):
        base = features(step_type, 1, 0.5)
        assert np.abs(features(step_type, 2, 0.5) - base).max() > 1e-3
        assert np.abs(features(step_type, 1, -0.5) - base).max() > 1e-3
        np.testing.assert_array_equal(
            features(step_type, 1, 50.0), features(step_type, 1, 1.0), "rewards are clipped"
        )
    first = features(StepType.FIRST, 0, 0.0)
    np.testing.assert_array_equal(features(StepType.FIRST, 2, 0.5), first)
    assert np.abs(features(StepType.MID, 0, 0.0) - first).max() > 1e-3


def test_without_an_lstm_there_is_no_state() -> None:
    body, _ = make("mlp", 0)
    assert body.initial_state(5) == ()
    assert body.output_size == 256 + 5 + 1


def test_initial_state_is_zeros() -> None:
    body, _ = make("mlp", 8)
    for part in body.initial_state(5):
        np.testing.assert_array_equal(part, np.zeros((5, 8), np.float32))
