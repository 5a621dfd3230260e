"""Atari 2600 games on the Arcade Learning Environment, played by SEED's protocol unless told else.

That is: 84x84 grayscale pictures, each the maximum of the last two frames of a step; at most 30
no-ops at an episode's start; all 18 actions; no sticky actions; no sign of a lost life; 108,000
frames an episode at most. Rewards are the game's own: agents clip them by `max_abs_reward`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from seed_rl.config import option
from seed_rl.envs.atari.environments import AtariEnvironments
from seed_rl.envs.atari.games import action_codes, require_atari_py, rom_of
from seed_rl.envs.atari.human_scores import human_scores
from seed_rl.envs.atari.pictures import SIZE
from seed_rl.envs.environment import Environments
from seed_rl.envs.scores import ReferenceScores
from seed_rl.specs import ArraySpec, EnvironmentSpecs

BACKENDS = ("ale_py", "atari_py")
# How the scores that others publish are made.
_PROTOCOL = (
    "num_action_repeats",
    "max_random_noops",
    "sticky_actions",
    "full_action_space",
    "max_episode_frames",
    "life_loss",
)


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
    num_threads: int = option(
        0, "Atari: emulation threads of one actor, of ale_py's emulator only. 0: one a core."
    )
    atari_backend: str = option(
        "ale_py", "Atari: whose emulator; scripts/install_atari_py.sh installs the other.", BACKENDS
    )

    def __post_init__(self) -> None:
        rom = rom_of(self.game)
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
        if self.atari_backend not in BACKENDS:
            raise ValueError(
                f"atari_backend: wanted {' or '.join(BACKENDS)}, saw {self.atari_backend}"
            )
        if self.atari_backend == "atari_py":
            require_atari_py(rom)


def specs(config: Config) -> EnvironmentSpecs:
    num_actions = 18 if config.full_action_space else len(action_codes(rom_of(config.game), False))
    return EnvironmentSpecs(
        observation=ArraySpec((SIZE, SIZE), "uint8", 0, 255),
        action=ArraySpec((), "int32", 0, num_actions - 1),
    )


def make(config: Config, env_ids: Sequence[int], seed: int) -> Environments:
    protocol = {name: getattr(config, name) for name in _PROTOCOL}
    rom = rom_of(config.game)
    if config.atari_backend == "atari_py":
        from seed_rl.envs.atari.atari_py_environments import AtariPyEnvironments

        return AtariPyEnvironments(specs(config), env_ids, seed, rom=rom, **protocol)
    return AtariEnvironments(
        specs(config), env_ids, seed, rom=rom, num_threads=config.num_threads, **protocol
    )


def describe(config: Config) -> str:
    sticky = f"sticky actions {config.sticky_actions:g}" if config.sticky_actions else "not sticky"
    others = [
        f"{field.name}={getattr(config, field.name)} in place of {field.default}"
        for field in dataclasses.fields(config)
        if field.name in _PROTOCOL and getattr(config, field.name) != field.default
    ]
    return (
        f"{rom_of(config.game)} on {config.atari_backend}, {SIZE}x{SIZE} grayscale, "
        f"{specs(config).action.num_choices} actions ({sticky}), "
        f"{config.num_action_repeats} frames a step, {config.num_stacked_frames} stacked, "
        f"at most {config.max_random_noops} random no-ops and {config.max_episode_frames} frames "
        f"an episode, which {'ends' if config.life_loss else 'goes on'} at a lost life: "
        + (f"not SEED's protocol, {', '.join(others)}" if others else "SEED's protocol")
    )


def reference_scores(config: Config) -> ReferenceScores | None:
    """What chance and people score at the game, if it is one of the 57."""
    return human_scores().get(rom_of(config.game))
