"""Atari 2600 games on the Arcade Learning Environment, played by SEED's protocol unless told else.

That is: 84x84 grayscale pictures, each the maximum of the last two frames of a step; at most 30
no-ops at an episode's start; all 18 actions; no sticky actions; no sign of a lost life; 108,000
frames an episode at most. Rewards are the game's own: agents clip them by `max_abs_reward`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from seed_rl.config import option
from seed_rl.envs.atari.environments import SIZE, AtariEnvironments
from seed_rl.envs.atari.games import num_minimal_actions, rom_of
from seed_rl.specs import ArraySpec, EnvironmentSpecs


@dataclasses.dataclass(frozen=True)
class Config:
    """Atari: the game and the protocol by which it is played."""

    game: str = option("Pong", "Atari: the game, as in Pong or MsPacman.")
    num_action_repeats: int = option(4, "Frames that one step takes, all with the same action.")
    max_random_noops: int = option(30, "Atari: at most so many random no-ops start an episode.")
    sticky_actions: float = option(
        0.0, "Atari: probability, at each frame, that the last frame's action is played again."
    )
    full_action_space: bool = option(
        True, "Atari: offer all 18 actions, not only those that do something in the game."
    )
    max_episode_frames: int = option(
        108_000, "Atari: frames after which an episode is cut off (truncated), no-ops not counted."
    )
    num_stacked_frames: int = option(4, "Frames that the learner stacks.")
    life_loss: bool = option(
        False, "Atari: a lost life ends an episode; the next one goes on where the game stands."
    )
    num_threads: int = option(0, "Atari: emulation threads of one actor. 0: one a core.")

    def __post_init__(self) -> None:
        rom_of(self.game)
        for name, least in (
            ("num_action_repeats", 1),
            ("max_random_noops", 0),
            ("max_episode_frames", 1),
            ("num_stacked_frames", 1),
            ("num_threads", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: wanted at least {least}, saw {getattr(self, name)}")
        if not 0 <= self.sticky_actions < 1:
            raise ValueError(
                f"sticky_actions: wanted a probability below 1, saw {self.sticky_actions}"
            )


def specs(config: Config) -> EnvironmentSpecs:
    num_actions = 18 if config.full_action_space else num_minimal_actions(rom_of(config.game))
    return EnvironmentSpecs(
        observation=ArraySpec((SIZE, SIZE), "uint8", 0, 255),
        action=ArraySpec((), "int32", 0, num_actions - 1),
    )


def make(config: Config, env_ids: Sequence[int], seed: int) -> AtariEnvironments:
    return AtariEnvironments(
        specs(config),
        env_ids,
        seed,
        rom=rom_of(config.game),
        num_action_repeats=config.num_action_repeats,
        max_random_noops=config.max_random_noops,
        sticky_actions=config.sticky_actions,
        full_action_space=config.full_action_space,
        max_episode_frames=config.max_episode_frames,
        life_loss=config.life_loss,
        num_threads=config.num_threads,
    )


def describe(config: Config) -> str:
    sticky = f"sticky actions {config.sticky_actions:g}" if config.sticky_actions else "not sticky"
    return (
        f"{rom_of(config.game)} on ALE, {SIZE}x{SIZE} grayscale, "
        f"{specs(config).action.num_choices} actions ({sticky}), "
        f"{config.num_action_repeats} frames a step, {config.num_stacked_frames} stacked, "
        f"at most {config.max_random_noops} random no-ops and {config.max_episode_frames} frames "
        f"an episode, which {'ends' if config.life_loss else 'goes on'} at a lost life"
    )
