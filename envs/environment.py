"""What the framework asks of environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from seed_rl.specs import EnvironmentSpecs, Nest
from seed_rl.types import StepType, Transition

# numpy takes long to turn enums into numbers.
_MID, _TERMINATED, _TRUNCATED = (
    np.uint8(kind.value) for kind in (StepType.MID, StepType.TERMINATED, StepType.TRUNCATED)
)


class Environments(Protocol):
    """`n` environments stepped together. What they return is never written to again."""

    @property
    def specs(self) -> EnvironmentSpecs: ...

    def reset(self) -> Transition:
        """Starts an episode in every environment: all step types are FIRST."""

    def step(self, action: Nest) -> Transition:
        """Takes one action per environment, leaves `[n, ...]`.

        An environment whose last step was TERMINATED or TRUNCATED ignores its action, resets, and
        returns FIRST with reward 0.
        """

    def close(self) -> None:
        """Frees everything. Closing twice does no harm."""


class Family(Protocol):
    """A kind of environments, such as all of Atari: a module or an object with these four.

    It may also have `reference_scores(config) -> ReferenceScores | None`, of a human and of random
    play, and `evaluation_config(config) -> Config`, where an agent is evaluated on other
    environments than it is trained on.

    `Config` is a frozen dataclass of `seed_rl.config.option` fields. Two of its fields mean
    something to the learner: `num_action_repeats`, the frames that one step takes, and
    `num_stacked_frames`, the frames that the learner stacks; environments return single ones.
    """

    Config: Any

    def specs(self, config: Any) -> EnvironmentSpecs: ...

    def make(self, config: Any, env_ids: Sequence[int], seed: int) -> Environments:
        """Environments with these global ids. Each one's randomness comes of `seed` and its id."""

    def describe(self, config: Any) -> str:
        """One line that says how these environments are played."""


def step_types(terminated: np.ndarray, truncated: np.ndarray) -> np.ndarray:
    """Step types `[n]` of steps that are not the first of their episodes, from bools `[n]`."""
    return np.where(terminated, _TERMINATED, np.where(truncated, _TRUNCATED, _MID))
