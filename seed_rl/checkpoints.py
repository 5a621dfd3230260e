"""Saves and restores everything that a run needs to go on: weights, optimizer, counters."""

from __future__ import annotations

import collections
import logging
import os
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from seed_rl.errors import UserError

_logger = logging.getLogger(__name__)
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class CheckpointError(UserError):
    """No checkpoint could be restored as asked."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint's files are cut off or changed."""


class Checkpoints:
    """The numbered checkpoints of one run. Files appear whole or not at all.

    `parts` are trackable objects by name, all of whose variables exist.
    """

    def __init__(self, directory: str, parts: Mapping[str, Any], max_to_keep: int = 3) -> None:
        self._directory = directory
        self._parts = frozenset(parts)
        self._checkpoint = tf.train.Checkpoint(**parts)
        self._manager = tf.train.CheckpointManager(self._checkpoint, directory, max_to_keep)

    def save(self, number: int) -> str:
        path: str = self._manager.save(checkpoint_number=number)
        return path

    def restore_latest(self) -> str | None:
        """Restores the newest checkpoint that is whole; None where there is none at all.

        A damaged one is passed over with a warning. Raises CheckpointError where all are damaged,
        and where a whole one does not match our variables: that is another network, and an older
        checkpoint would not help.
        """
        paths = self._paths()
        for path in paths:
            try:
                self.restore(path)
                return path
            except DamagedCheckpointError as error:
                _logger.warning("%s; trying the one before", error)
        if paths:
            raise CheckpointError(
                f"all {len(paths)} checkpoints in {self._directory} are damaged; move them away "
                "to start anew"
            )
        return None

    def restore(self, path: str) -> None:
        """Restores this checkpoint into every variable of every part, or into none.

        The checkpoint may have further parts: an agent alone is restored from that of a whole run.
        Raises DamagedCheckpointError, or CheckpointError with the names that do not match.
        """
        wanted = self._variables()
        saved = {
            name: shape
            for name, shape in _saved_variables(path).items()
            if name.partition("/")[0] in self._parts
        }
        if saved != wanted:
            raise CheckpointError(_mismatch(path, saved, wanted))
        self._checkpoint.restore(path).assert_existing_objects_matched().expect_partial()

    def _paths(self) -> list[str]:
        """Checkpoints from newest to oldest, also where the manager's own list was lost."""
        indices = tf.io.gfile.glob(os.path.join(self._directory, "ckpt-*.index"))
        numbered = [(int(path[:-6].rpartition("-")[2]), path[:-6]) for path in indices]
        return [path for _, path in sorted(numbered, reverse=True)]

    def _variables(self) -> dict[str, list[int]]:
        """Names and shapes of our variables as a checkpoint has them: by the shortest path."""
        view = tf.train.TrackableView(self._checkpoint)
        names = {}
        seen = {id(self._checkpoint)}
        todo = collections.deque([("", self._checkpoint)])
        while todo:
            prefix, node = todo.popleft()
            for name, child in view.children(node).items():
                if id(child) in seen:
                    continue
                seen.add(id(child))
                if isinstance(child, (tf.Variable, keras.Variable)):
                    names[prefix + name] = list(child.shape)
                todo.append((prefix + name + "/", child))
        names.pop("save_counter", None)  # the checkpoint's own, made by its first save
        return names


def _saved_variables(path: str) -> dict[str, list[int]]:
    """Names and shapes of the variables in a checkpoint, all of whose data is read once.

    Raises DamagedCheckpointError where that fails: TensorFlow checks a checksum on every read.
    """
    try:
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        for name in shapes:
            reader.get_tensor(name)
    # What TensorFlow raises depends on where the file is cut.
    except (tf.errors.OpError, IndexError, ValueError, RuntimeError) as error:
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: {error}") from error
    return {
        name.removesuffix(_VALUE): list(shape)
        for name, shape in shapes.items()
        if name.endswith(_VALUE) and name != "save_counter" + _VALUE
    }


def _mismatch(path: str, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    lines = [f"checkpoint {path} is of another network or optimizer:"]
    for name in sorted(saved.keys() | wanted.keys()):
        if saved.get(name) != wanted.get(name):
            lines.append(
                f"  {name}: {saved.get(name, 'absent')} in the checkpoint, "
                f"{wanted.get(name, 'absent')} here"
            )
    return "\n".join(lines)
