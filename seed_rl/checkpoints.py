"""Saves and restores everything that a run needs to go on: weights, optimizer, counters."""

from __future__ import annotations

import collections
import logging
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from seed_rl import paths
from seed_rl.errors import UserError

_logger = logging.getLogger(__name__)
_INDEX = ".index"
_INDEX_NAME = re.compile(r"ckpt-(\d+)\.index")
_UNFINISHED = "unfinished"


class CheckpointError(UserError):
    """No checkpoint could be restored as asked."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint's files are cut off or changed."""


class Checkpoints:
    """The numbered checkpoints of one run. Each is there whole, or its number is not there.

    `parts` are trackable objects by name, all of whose variables exist. A variable that several
    parts hold is saved as the first one's.
    """

    # Variables are saved by their paths from the part that they belong to. tf.train.Checkpoint
    # would name a weight by its shortest path from the top, which may well be the optimizer's list
    # of what it updates; an agent by itself would then find only some of its weights.
    def __init__(self, directory: str, parts: Mapping[str, Any], max_to_keep: int = 3) -> None:
        if set(directory) & set("[\\"):
            raise CheckpointError(
                f"{directory} has a '[' or a backslash in its name, so that TensorFlow would not "
                "find the checkpoints in it again; choose another --logdir"
            )
        self._directory = directory
        self._max_to_keep = max_to_keep
        self._parts = frozenset(parts)
        self._variables: dict[str, tf.Variable] = {}
        seen: set[int] = set()
        for name, part in parts.items():
            self._variables |= _variables(name, part, seen)

    def save(self, number: int) -> str:
        """Saves, deletes what is older than the newest few, and returns the checkpoint's path."""
        unfinished = os.path.join(self._directory, _UNFINISHED)
        paths.remove_tree(unfinished)  # left by a process that was killed
        paths.makedirs(unfinished)
        tf.raw_ops.SaveV2(
            prefix=os.path.join(unfinished, f"ckpt-{number}"),
            tensor_names=list(self._variables),
            shape_and_slices=[""] * len(self._variables),
            tensors=[variable.read_value() for variable in self._variables.values()],
        )
        # Its index, without which it is not there, comes last and goes first.
        for name in sorted(paths.listdir(unfinished), key=lambda name: name.endswith(_INDEX)):
            paths.replace(os.path.join(unfinished, name), os.path.join(self._directory, name))
        paths.remove_tree(unfinished)
        older = [path for found, path in self._found() if found <= number]
        for path in older[self._max_to_keep :]:
            self._delete(path)
        return older[0]

    def restore_latest(self) -> str | None:
        """Restores the newest checkpoint that is whole; None where there is none at all.

        A damaged one is passed over with a warning. Raises CheckpointError where all are damaged,
        and where a whole one does not match our variables: that is another network, and an older
        checkpoint would not help.
        """
        found = [path for _, path in self._found()]
        for path in found:
            try:
                self.restore(path)
                return path
            except DamagedCheckpointError as error:
                _logger.warning("%s; trying the one before", error)
        if found:
            raise CheckpointError(
                f"all {len(found)} checkpoints in {self._directory} are damaged; move them away "
                "to start anew"
            )
        return None

    def restore(self, path: str) -> None:
        """Restores this checkpoint into every variable of every part, or into none.

        The checkpoint may have further parts: an agent alone is restored from that of a whole run.
        Raises DamagedCheckpointError, or CheckpointError with the names that do not match.
        """
        if not paths.exists(path + _INDEX):
            raise CheckpointError(
                f"there is no checkpoint {path}: wanted logdir/checkpoints/ckpt-N, where "
                f"ckpt-N{_INDEX} is one of the files there"
            )
        saved = {
            name: value
            for name, value in _read(path).items()
            if name.partition("/")[0] in self._parts
        }
        saved_specs = {name: _describe(value) for name, value in saved.items()}
        wanted_specs = {name: _describe(variable) for name, variable in self._variables.items()}
        if saved_specs != wanted_specs:
            raise CheckpointError(_mismatch(path, saved_specs, wanted_specs))
        for name, variable in self._variables.items():
            variable.assign(saved[name])

    def _found(self) -> list[tuple[int, str]]:
        """Numbers and paths of the checkpoints, from newest to oldest."""
        matches = map(_INDEX_NAME.fullmatch, paths.listdir(self._directory))
        numbers = sorted((int(match[1]) for match in matches if match), reverse=True)
        return [(number, os.path.join(self._directory, f"ckpt-{number}")) for number in numbers]

    def _delete(self, path: str) -> None:
        paths.remove(path + _INDEX)
        for name in paths.listdir(self._directory):
            if name.startswith(os.path.basename(path) + ".data-"):
                paths.remove(os.path.join(self._directory, name))


def _variables(part_name: str, part: Any, seen: set[int]) -> dict[str, tf.Variable]:
    """The part's variables that are not `seen` yet, by their shortest paths from it."""
    view = tf.train.TrackableView(part)
    variables = {}
    todo = collections.deque([(part_name, part)])
    while todo:
        path, node = todo.popleft()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, tf.Variable):
            variables[path] = node
        todo.extend((f"{path}/{name}", child) for name, child in view.children(node).items())
    return variables


def _read(path: str) -> dict[str, np.ndarray]:
    """Names and values of all variables in a checkpoint.

    Raises DamagedCheckpointError where that fails: TensorFlow checks a checksum on every read.
    """
    try:
        # tf.train.load_checkpoint asks first whether the path is a folder, which file systems
        # without real ones may affirm.
        reader = tf.compat.v1.train.NewCheckpointReader(path)
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    # What TensorFlow raises depends on where the file is cut.
    except (tf.errors.OpError, IndexError, ValueError, RuntimeError) as error:
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: {error}") from error


def _describe(value: Any) -> str:
    return f"{tf.as_dtype(value.dtype).name}{list(value.shape)}"


def _mismatch(path: str, saved: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    lines = [f"checkpoint {path} is of another network or optimizer:"]
    for name in sorted(saved.keys() | wanted.keys()):
        if saved.get(name) != wanted.get(name):
            lines.append(
                f"  {name}: {saved.get(name, 'absent')} in the checkpoint, "
                f"{wanted.get(name, 'absent')} here"
            )
    return "\n".join(lines)
