"""Catch: a pixel game of our own, quick enough to learn in tests.

A ball falls one row a step in a random column; the paddle on the bottom row moves left, stays or
moves right. Where they are is told by the picture alone. Catching pays 1, missing -1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from seed_rl.config import option
from seed_rl.envs.catch.environments import PIXELS, CatchEnvironments
from seed_rl.specs import ArraySpec, EnvironmentSpecs


@dataclasses.dataclass(frozen=True)
class Config:
    """Catch: a small game of our own, quick to learn."""

    board_size: int = option(
        12, "Catch: rows and columns of the board; must divide 84. An episode has one step less."
    )
    balls_per_episode: int = option(
        1, "Catch: balls that fall, one after the other, in an episode."
    )
    num_stacked_frames: int = option(1, "Frames that the learner stacks. Catch needs only one.")

    def __post_init__(self) -> None:
        if self.board_size < 2 or PIXELS % self.board_size:
            raise ValueError(
                f"board_size: wanted a divisor of {PIXELS} above 1, such as 6 or 12, "
                f"saw {self.board_size}"
            )
        if self.balls_per_episode < 1:
            raise ValueError(f"balls_per_episode: wanted at least 1, saw {self.balls_per_episode}")


def specs(config: Config) -> EnvironmentSpecs:
    return EnvironmentSpecs(
        observation=ArraySpec((PIXELS, PIXELS), "uint8", 0, 255),
        action=ArraySpec((), "int32", 0, 2),
    )


def make(config: Config, env_ids: Sequence[int], seed: int) -> CatchEnvironments:
    return CatchEnvironments(
        specs(config), config.board_size, config.balls_per_episode, env_ids, seed
    )


def describe(config: Config) -> str:
    size = config.board_size
    return f"Catch on {size}x{size} cells, {config.balls_per_episode} ball(s) an episode"
