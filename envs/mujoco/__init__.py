"""MuJoCo's robots as gymnasium has them. A frame is a step: what an id simulates in it is its own.

HalfCheetah-v5 simulates 5 steps of 0.01 s in one of the environment; learning curves of the
literature count the latter, and so do we. An id's time limit, 1,000 steps for most, truncates.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence

import gymnasium
import mujoco

from seed_rl.config import option
from seed_rl.envs import gym
from seed_rl.envs.environment import Environments
from seed_rl.specs import EnvironmentSpecs


@dataclasses.dataclass(frozen=True)
class Config:
    """MuJoCo: which robot."""

    game: str = option("HalfCheetah-v5", "MuJoCo: the id in gymnasium, such as Hopper-v5.")

    def __post_init__(self) -> None:
        games = _games()
        if self.game not in games:
            wanted = difflib.get_close_matches(self.game, games, n=3, cutoff=0.5) or games
            raise ValueError(
                f"--game={self.game} is no MuJoCo environment of gymnasium: wanted one of "
                f"{', '.join(wanted)}"
            )


def specs(config: Config) -> EnvironmentSpecs:
    return gym.specs(gym.Config(config.game))


def make(config: Config, env_ids: Sequence[int], seed: int) -> Environments:
    return gym.make(gym.Config(config.game), env_ids, seed)


def describe(config: Config) -> str:
    limit = gymnasium.spec(config.game).max_episode_steps
    return f"{config.game} on MuJoCo {mujoco.__version__}, at most {limit} steps an episode"


def _games() -> list[str]:
    """Those ids that need no more than the package mujoco: version 3 and older need mujoco_py."""
    return sorted(
        name
        for name, spec in gymnasium.registry.items()
        if str(spec.entry_point).startswith("gymnasium.envs.mujoco")
        and not name.endswith(("-v2", "-v3"))
    )
