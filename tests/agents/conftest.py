"""Random unrolls for the tests of agents and networks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from seed_rl import distributions, specs
from seed_rl.specs import ArraySpec, EnvironmentSpecs
from seed_rl.types import StepInputs, StepType, Unrolls


def _random_leaf(rng: np.random.Generator, spec: ArraySpec, *leading: int) -> np.ndarray:
    shape = (*leading, *spec.shape)
    if np.dtype(spec.dtype).kind == "f":
        numbers = rng.standard_normal(shape).astype(spec.dtype)
        return np.tanh(numbers) if spec.maximum == 1 else numbers
    return rng.integers(0, int(spec.maximum or 255) + 1, shape).astype(spec.dtype)


def _previous(first: np.ndarray, action: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The action before each row: 0 at FIRST, and that of `before` in row 0."""
    previous = np.concatenate([before[:1], action[:-1]])
    previous[first] = 0
    return previous


def _random_step_types(rng: np.random.Generator, num_rows: int, batch_size: int) -> np.ndarray:
    """Step types as environments send them: FIRST follows an end and nothing else does."""
    step_type = np.full((num_rows, batch_size), StepType.MID, np.uint8)
    kinds = (StepType.MID, StepType.TERMINATED, StepType.TRUNCATED)
    step_type[0] = rng.choice([StepType.FIRST, StepType.MID], batch_size)
    for t in range(1, num_rows):
        ended = step_type[t - 1] >= StepType.TERMINATED
        step_type[t] = np.where(
            ended, StepType.FIRST, rng.choice(kinds, batch_size, p=(0.7, 0.15, 0.15))
        )
    return step_type


@pytest.fixture
def random_unrolls() -> Callable[..., Unrolls]:
    """Unrolls of random numbers that obey the rules of step types, as tensors."""

    def make(
        environment: EnvironmentSpecs,
        num_rows: int,
        batch_size: int,
        state: specs.Nest = (),
        seed: int = 0,
        step_type: np.ndarray | None = None,
    ) -> Unrolls:
        rng = np.random.default_rng(seed)
        if step_type is None:
            step_type = _random_step_types(rng, num_rows, batch_size)
        first = step_type == StepType.FIRST
        action, before = (
            specs.map_nest(
                lambda spec: _random_leaf(rng, spec, num_rows, batch_size), environment.action
            )
            for _ in range(2)
        )
        prev_action = specs.map_nest(
            lambda taken, other: _previous(first, taken, other), action, before
        )
        step = StepInputs(
            step_type=step_type,
            reward=np.where(first, 0, rng.standard_normal(first.shape)).astype(np.float32),
            observation=specs.map_nest(
                lambda spec: _random_leaf(rng, spec, num_rows, batch_size), environment.observation
            ),
            prev_action=prev_action,
        )
        num_parameters = distributions.for_action(environment.action).num_parameters
        logits = rng.standard_normal((num_rows, batch_size, num_parameters))
        unrolls = Unrolls(step, action, {"policy": logits.astype(np.float32)}, state)
        return specs.map_nest(tf.convert_to_tensor, unrolls)

    return make
