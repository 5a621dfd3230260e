"""The records that pass between environments, inference, unrolls and agents."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np

from seed_rl.specs import Nest


class StepType(enum.IntEnum):
    """Kind of a step, as in dm_env, with the two ends of an episode told apart.

    The action given in answer to a TERMINATED or TRUNCATED step is ignored: the environment then
    resets and returns FIRST.
    """

    FIRST = 0
    MID = 1
    TERMINATED = 2
    TRUNCATED = 3


def is_last(step_type: Any) -> Any:
    """Whether each step ends an episode; for numpy arrays and TensorFlow tensors alike."""
    return step_type >= StepType.TERMINATED.value


class Transition(NamedTuple):
    """What n environments return from one step, arrays `[n, ...]`.

    `reward` is what the agent learns from, 0 at FIRST; `raw_reward` is the game's own score, which
    episode returns are made of.
    """

    step_type: np.ndarray  # uint8 [n]
    reward: np.ndarray  # float32 [n]
    raw_reward: np.ndarray  # float32 [n]
    observation: Nest


class StepInputs(NamedTuple):
    """What a network sees of a step, tensors `[N, ...]` or `[T, B, ...]`.

    `prev_action` is the action that led to this step and is all zeros at FIRST.
    """

    step_type: Any  # uint8
    reward: Any  # float32
    observation: Nest
    prev_action: Nest


class Unrolls(NamedTuple):
    """B unrolls of K + T + 1 steps, time-major: K of burn-in, and T transitions to learn from.

    The last step of one unroll is the first of the next one's T + 1. `action[t]` and
    `extras[...][t]` are what inference answered to `step[t]`; `state` is the recurrent state that
    went into `step[0]`, before any reset that step itself asks for.
    """

    step: StepInputs  # [K + T + 1, B, ...]
    action: Nest  # [K + T + 1, B, ...]
    extras: dict[str, Any]  # [K + T + 1, B, ...]; empty where unrolls are replayed
    state: Nest  # [B, ...]
    weights: Any = None  # float32 [B], of importance sampling; None where nothing is sampled
