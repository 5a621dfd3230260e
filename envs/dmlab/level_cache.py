"""Keeps compiled levels in a folder, which any number of processes and machines may share.

DeepMind Lab compiles the maps of most levels anew for every episode, which takes 10 to 77 s.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import uuid
import zipfile
from typing import Any, Protocol

_logger = logging.getLogger(__name__)


class _Folder(Protocol):
    def read(self, name: str) -> bytes | None:
        """The file's contents; None where there is no such file."""

    def write(self, name: str, data: bytes) -> None:
        """Writes a file that others see whole or not at all."""


class LevelCache:
    """What `deepmind_lab.Lab` takes as `level_cache`.

    Nothing that goes wrong with the folder ends an episode: the level is compiled, and one warning
    is given for each kind of failure.
    """

    def __init__(self, folder: str) -> None:
        """A local folder, made where it is missing, or a remote one, such as gs://bucket/levels."""
        self._place = folder if "://" in folder else os.path.abspath(os.path.expanduser(folder))
        self._folder: _Folder = (
            _RemoteFolder(folder) if "://" in folder else _LocalFolder(self._place)
        )
        self._warnings: set[tuple[str, str]] = set()

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copies the level of this key to `pk3_path`. True only when all of it lies there."""
        try:
            data = self._folder.read(_file_name(key))
            if data is None:
                return False
            _require_whole(data)
            _write_whole(pk3_path, data, durable=False)
        except Exception as error:  # whatever it is, the level can still be compiled
            self._warn("read from", error)
            return False
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keeps the level at `pk3_path` under this key."""
        try:
            with open(pk3_path, "rb") as file:
                data = file.read()
            _require_whole(data)
            self._folder.write(_file_name(key), data)
        except Exception as error:
            self._warn("write to", error)

    def _warn(self, action: str, error: Exception) -> None:
        kind = action, type(error).__name__
        if kind not in self._warnings:
            self._warnings.add(kind)
            _logger.warning(
                "can't %s the level cache %s, so that levels are compiled: %s: %s",
                action,
                self._place,
                kind[1],
                error,
            )


class _LocalFolder:
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        try:
            with open(os.path.join(self._folder, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        os.makedirs(self._folder, exist_ok=True)
        _write_whole(os.path.join(self._folder, name), data, durable=True)


class _RemoteFolder:
    """A folder of whatever TensorFlow can reach, where writing a file is atomic, as in gs://."""

    def __init__(self, folder: str) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        # Here only: actors do without TensorFlow otherwise.
        import tensorflow as tf

        self._folder = folder.rstrip("/")
        self._not_found = tf.errors.NotFoundError
        self._gfile: Any = tf.io.gfile

    def read(self, name: str) -> bytes | None:
        try:
            with self._gfile.GFile(f"{self._folder}/{name}", "rb") as file:
                return bytes(file.read())
        except self._not_found:
            return None

    def write(self, name: str, data: bytes) -> None:
        if not self._folder.startswith("gs://"):
            self._gfile.makedirs(self._folder)  # buckets have no folders
        with self._gfile.GFile(f"{self._folder}/{name}", "wb") as file:
            file.write(data)


def _file_name(key: str) -> str:
    """Keys may be long and hold any characters."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest() + ".pk3"


def _require_whole(data: bytes) -> None:
    """Raises ValueError where only a part is left of a level."""
    # A pk3 is a zip file, which starts with PK and ends with the list of what is in it.
    if b"PK".startswith(data[:2]) and not zipfile.is_zipfile(io.BytesIO(data)):
        raise ValueError(f"wanted a whole pk3 file, saw {len(data)} bytes of one")


def _write_whole(path: str, data: bytes, *, durable: bool) -> None:
    """Replaces the file by one that is whole from the start; `durable`: after a power cut, too."""
    new = f"{path}.{uuid.uuid4().hex}.new"
    try:
        with open(new, "xb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        if os.path.exists(new):
            os.unlink(new)
        raise
