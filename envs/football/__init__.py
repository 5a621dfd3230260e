"""Google Research Football: one agent plays the active player of the left team.

Observations are Super Mini Maps (Kurach et al. 2020, https://arxiv.org/abs/1907.11180): 4 planes
(left team, right team, ball, active player) of the last 4 steps, oldest first, each a picture of
the field with one pixel set for each. They come packed, 8 pixels to a byte.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from seed_rl.config import option
from seed_rl.envs.football import scenarios
from seed_rl.envs.football.environments import FootballEnvironments, create
from seed_rl.specs import ArraySpec, EnvironmentSpecs, packed_bits

_REWARDS = ("scoring", "scoring,checkpoints")
_SIZES = {"default": (72, 96), "medium": (90, 120), "large": (108, 144)}  # height, width
_NUM_PLANES = 4 * 4
_NUM_ACTIONS = 19


@dataclasses.dataclass(frozen=True)
class Config:
    """Football: the scenario, what is rewarded, and how large the map is."""

    game: str = option(
        "11_vs_11_easy_stochastic", "Football: the scenario, as in academy_empty_goal_close."
    )
    num_action_repeats: int = option(1, "Frames that one step takes, all with the same action.")
    reward_experiment: str = option(
        "scoring",
        "Football: what is learned from. scoring: goals, 1 or -1 each. checkpoints: also 0.1 for "
        "each tenth of the way to the goal.",
        choices=_REWARDS,
    )
    smm_size: str = option(
        "default",
        "Football: size of the Super Mini Map. default: 96x72, medium: 120x90, large: 144x108.",
        choices=tuple(_SIZES),
    )

    def __post_init__(self) -> None:
        scenarios.require(self.game)
        if self.num_action_repeats < 1:
            raise ValueError(
                f"--num_action_repeats={self.num_action_repeats}: wanted at least 1; the default "
                "is 1"
            )
        for name, choices in (("reward_experiment", _REWARDS), ("smm_size", tuple(_SIZES))):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"--{name}={getattr(self, name)}: wanted one of {' | '.join(choices)}"
                )


def specs(config: Config) -> EnvironmentSpecs:
    return EnvironmentSpecs(
        observation=packed_bits((*_SIZES[config.smm_size], _NUM_PLANES)),
        action=ArraySpec((), "int32", 0, _NUM_ACTIONS - 1),
    )


def make(config: Config, env_ids: Sequence[int], seed: int) -> FootballEnvironments:
    return FootballEnvironments(
        specs(config),
        functools.partial(create, config.game, config.reward_experiment, _SIZES[config.smm_size]),
        env_ids,
        seed,
        num_action_repeats=config.num_action_repeats,
        clock_ends_game=scenarios.is_match(config.game),
    )


def describe(config: Config) -> str:
    height, width = _SIZES[config.smm_size]
    return (
        f"Google Research Football's {config.game}, Super Mini Map of {width}x{height}, rewards "
        f"for {config.reward_experiment.replace(',', ' and ')}, {config.num_action_repeats} "
        "frame(s) a step"
    )
