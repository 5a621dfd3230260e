"""The levels of DMLab-30: their names, variants and reference scores."""

from __future__ import annotations

import csv
import functools
import importlib.resources
from typing import NamedTuple

from seed_rl.envs.scores import ReferenceScores

_FOLDER = "contributed/dmlab30/"
_TRAIN, _TEST = "_train", "_test"


class _Task(NamedTuple):
    """One of the 30 tasks."""

    scores: ReferenceScores
    has_variants: bool  # levels to train on and others, held out, to test on


@functools.cache
def _tasks() -> dict[str, _Task]:
    """All 30 by name, that of a variant's level without its end."""
    file = importlib.resources.files("seed_rl.envs.dmlab").joinpath("dmlab30_scores.csv")
    with file.open(encoding="utf-8") as lines:
        return {
            row["level"].removesuffix(_TEST): _Task(
                ReferenceScores(random=float(row["random"]), human=float(row["human"])),
                row["level"].endswith(_TEST),
            )
            for row in csv.DictReader(lines)
        }


def names() -> list[str]:
    """The 30 tasks' names."""
    return list(_tasks())


def _find(game: str) -> tuple[str, str]:
    """The name of the DMLab-30 task that `game` means, and '_train', '_test' or ''.

    The name is '' for levels that are not of DMLab-30.
    """
    name = game.removeprefix(_FOLDER)
    if name in _tasks():
        return name, ""
    for variant in (_TRAIN, _TEST):
        task = name.removesuffix(variant)
        if task != name and task in _tasks() and _tasks()[task].has_variants:
            return task, variant
    return "", ""


def path(game: str, *, test: bool = False) -> str:
    """DeepMind Lab's name of the level that `game` means.

    That is a task of DMLab-30 by its name, with or without its folder, or the path of any level.
    `test` asks for the level that a task is tested on, whichever of its levels `game` names.

    Raises ValueError for what looks like a task's name and is none.
    """
    task, variant = _find(game)
    if task:
        if _tasks()[task].has_variants:
            variant = _TEST if test else variant or _TRAIN
        return f"{_FOLDER}{task}{variant}"
    kind = game.partition("_")[0]
    similar = [name for name in _tasks() if name.startswith(f"{kind}_")]
    if not game or (similar and "/" not in game):
        raise ValueError(
            f"--game={game}: DMLab-30 has no such level; wanted one of "
            f"{', '.join(similar or _tasks())}, or the path of a level, such as "
            "contributed/dmlab30/rooms_watermaze or tests/empty_room_test"
        )
    return game


def is_held_out(level: str) -> bool:
    """Whether it is one of the levels that are kept from training."""
    return level.endswith(_TEST)


def has_instruction(level: str) -> bool:
    """Whether only a text tells what is to be done there."""
    return _name(level).startswith("language_")


def needs_dataset(level: str) -> bool:
    """Whether it shows pictures that DeepMind Lab does not bring."""
    return _name(level).startswith("psychlab_")


def reference_scores(game: str) -> ReferenceScores | None:
    """Those of the task of DMLab-30, whichever of its levels it is; None for other levels."""
    task, _ = _find(game)
    return _tasks()[task].scores if task else None


def _name(level: str) -> str:
    return level.rpartition("/")[2]
