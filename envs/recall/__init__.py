"""Recall: a small game that needs memory, and that nothing else but memory can win.

The first step shows a cue, the last asks for it, and so may some before. In between, `delay` steps
each show a number that must be the action, or the episode ends: so nobody can keep the cue in the
actions, which networks see, too. The numbers pay 1/2 together, right answers 1/2 together, and
wrong ones as much less: who copies all numbers gets the share of right answers, and without memory
nobody gets more than 1 / num_cues.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from seed_rl.config import option
from seed_rl.envs.recall.environments import RecallEnvironments
from seed_rl.specs import ArraySpec, EnvironmentSpecs


@dataclasses.dataclass(frozen=True)
class Config:
    """Recall: a small game of our own that needs memory."""

    num_cues: int = option(4, "Recall: how many cues there are, and actions.")
    delay: int = option(32, "Recall: steps between the cue and the last question for it.")
    num_questions: int = option(
        1, "Recall: how often it is asked for, at even distances; must divide the delay."
    )

    def __post_init__(self) -> None:
        if self.num_cues < 2:
            raise ValueError(f"num_cues: wanted at least 2, saw {self.num_cues}")
        # Without any, the answer to the cue would be the last action when it is asked for.
        if self.delay < 1:
            raise ValueError(f"delay: wanted at least 1, saw {self.delay}")
        if self.num_questions < 1 or self.delay % self.num_questions:
            raise ValueError(
                f"num_questions: wanted a divisor of delay={self.delay}, saw {self.num_questions}"
            )


def specs(config: Config) -> EnvironmentSpecs:
    return EnvironmentSpecs(
        observation=ArraySpec((2 * config.num_cues + 1,), "float32", 0, 1),
        action=ArraySpec((), "int32", 0, config.num_cues - 1),
    )


def make(config: Config, env_ids: Sequence[int], seed: int) -> RecallEnvironments:
    return RecallEnvironments(
        specs(config), config.num_cues, config.delay, config.num_questions, env_ids, seed
    )


def describe(config: Config) -> str:
    times = f", asked for {config.num_questions} times" if config.num_questions > 1 else ""
    return f"Recall of 1 of {config.num_cues} cues after {config.delay} step(s){times}"
