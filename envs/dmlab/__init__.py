"""DeepMind Lab: first-person tasks in 3-D, those of DMLab-30 above all.

The set-up is that of IMPALA and SEED (Espeholt et al. 2018 and 2020): 96x72 pixels in colour, each
action repeated for 4 frames, 9 actions, and an episode's end, by a time limit or not, is an end
for good: no value is expected after it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from seed_rl.config import option, require
from seed_rl.envs.dmlab import instructions, levels, module
from seed_rl.envs.dmlab.environments import ACTIONS, FRAME, INSTRUCTION, DmlabEnvironments
from seed_rl.envs.dmlab.level_cache import LevelCache
from seed_rl.envs.scores import ReferenceScores
from seed_rl.errors import UserError
from seed_rl.specs import ArraySpec, EnvironmentSpecs, Nest

_deepmind_lab = module.load()
_RENDERERS = ("software", "hardware")


@dataclasses.dataclass(frozen=True)
class Config:
    """DeepMind Lab: the level, and how it is seen and played."""

    game: str = option(
        "explore_goal_locations_small",
        "DMLab: a level of DMLab-30, as in rooms_watermaze, or the path of any level. Of levels "
        "with variants, NAME trains on NAME_train and is evaluated on NAME_test.",
    )
    width: int = option(96, "DMLab: width of the picture, a multiple of 4.")
    height: int = option(72, "DMLab: height of the picture.")
    num_action_repeats: int = option(4, "Frames that one step takes, all with the same action.")
    level_cache_dir: str = option(
        "",
        "DMLab: folder that keeps compiled levels, local or gs://bucket/folder; actors may share "
        "it. Empty: every level is compiled. With gs:// actors import TensorFlow.",
    )
    dataset_path: str = option(
        "", "DMLab: folder of the pictures that psychlab levels show, which need it."
    )
    renderer: str = option(
        "software", "DMLab: software, by OSMesa, or hardware, by the GPU.", choices=_RENDERERS
    )

    def __post_init__(self) -> None:
        level = levels.path(self.game)
        require(self, "width", self.width > 0 and self.width % 4 == 0, "a multiple of 4 above 0")
        require(self, "height", self.height > 0, "a number above 0")
        require(self, "num_action_repeats", self.num_action_repeats > 0, "a number above 0")
        require(self, "renderer", self.renderer in _RENDERERS, f"one of {', '.join(_RENDERERS)}")
        if levels.needs_dataset(level) and not self.dataset_path:
            raise ValueError(
                f"--game={self.game} shows pictures that DeepMind Lab does not bring: wanted "
                "--dataset_path, the folder that has them, saw none; docs/environments.md, "
                "'DeepMind Lab', tells where they are from"
            )


def specs(config: Config) -> EnvironmentSpecs:
    frame = ArraySpec((config.height, config.width, 3), "uint8", 0, 255)
    observation: Nest = frame
    if levels.has_instruction(levels.path(config.game)):
        observation = {"frame": frame, "instruction": instructions.SPEC}
    return EnvironmentSpecs(observation, ArraySpec((), "int32", 0, len(ACTIONS) - 1))


def make(config: Config, env_ids: Sequence[int], seed: int) -> DmlabEnvironments:
    # One thread a process draws: more would only be in each other's way where every core has its
    # actor. And with none of OSMesa's own threads about, a fork does no harm.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    level = levels.path(config.game)
    observations = [FRAME, INSTRUCTION] if levels.has_instruction(level) else [FRAME]
    settings = lab_settings(config)
    optional: dict[str, Any] = {}
    if config.level_cache_dir:
        optional["level_cache"] = LevelCache(config.level_cache_dir)

    def make_lab() -> Any:
        try:
            return _deepmind_lab.Lab(
                level, observations, config=settings, renderer=config.renderer, **optional
            )
        except RuntimeError as error:
            raise UserError(
                f"--game={config.game}: DeepMind Lab refuses the level {level} with the settings "
                f"{settings} and --renderer={config.renderer}: {error}; wanted a level "
                "of DMLab-30, such as rooms_watermaze, or the path of another level that it has"
            ) from error

    return DmlabEnvironments(specs(config), env_ids, seed, make_lab, config.num_action_repeats)


def lab_settings(config: Config) -> dict[str, str]:
    """The `config` of `deepmind_lab.Lab`."""
    settings = {"width": str(config.width), "height": str(config.height)}
    if levels.is_held_out(levels.path(config.game)):
        settings["allowHoldOutLevels"] = "true"
    if config.dataset_path:
        settings["datasetPath"] = os.path.abspath(os.path.expanduser(config.dataset_path))
    return settings


def evaluation_config(config: Config) -> Config:
    """The same task on the level that it is tested on."""
    return dataclasses.replace(config, game=levels.path(config.game, test=True))


def reference_scores(config: Config) -> ReferenceScores | None:
    return levels.reference_scores(config.game)


def describe(config: Config) -> str:
    level = levels.path(config.game)
    words = " and the instruction" if levels.has_instruction(level) else ""
    return (
        f"DeepMind Lab's {level}, {config.width}x{config.height} RGB{words}, {len(ACTIONS)} "
        f"actions, {config.num_action_repeats} frames a step, episodes of the level's own length"
    )
