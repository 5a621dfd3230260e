"""Files of a run's log dir, which may be a folder here or one of Google Cloud Storage.

Paths with a scheme, as in gs://bucket/folder, go through tf.io.gfile. Its errors are raised as
OSError, as those of folders here are, so that callers need to know only one kind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import IO, Any


def is_remote(path: str) -> bool:
    """Whether the path has a scheme."""
    return "://" in path


@contextlib.contextmanager
def _gfile(path: str) -> Iterator[Any]:
    import tensorflow as tf

    try:
        yield tf.io.gfile
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(_in_a_line(path, error)) from error
    except tf.errors.OpError as error:
        raise OSError(_in_a_line(path, error)) from error


def _in_a_line(path: str, error: Any) -> str:
    return f"{path}: {' '.join(error.message.split())}"


def read_text(path: str) -> str:
    with _open(path, "r") as file:
        return str(file.read())


def write_text(path: str, text: str) -> None:
    """Writes a file that is whole at any time, even where this process is killed."""
    with _open(path + ".new", "w") as file:
        file.write(text)
    replace(path + ".new", path)


@contextlib.contextmanager
def _open(path: str, mode: str) -> Iterator[IO[str]]:
    if not is_remote(path):
        with open(path, mode, encoding="utf-8") as local:
            yield local
        return
    with _gfile(path) as gfile, gfile.GFile(path, mode) as remote:
        yield remote


def exists(path: str) -> bool:
    if not is_remote(path):
        return os.path.exists(path)
    with _gfile(path) as gfile:
        return bool(gfile.exists(path))


def listdir(path: str) -> list[str]:
    """The names in a folder, none where it does not exist."""
    if not is_remote(path):
        return os.listdir(path) if os.path.isdir(path) else []
    with _gfile(path) as gfile:
        if not gfile.isdir(path):
            return []
        return [name.rstrip("/") for name in gfile.listdir(path)]  # folders end with a slash


def makedirs(path: str) -> None:
    if not is_remote(path):
        os.makedirs(path, exist_ok=True)
        return
    with _gfile(path) as gfile:
        gfile.makedirs(path)


def replace(source: str, target: str) -> None:
    """Renames a file, also where there is one of that name. In object storage that copies it."""
    if not is_remote(source):
        os.replace(source, target)
        return
    with _gfile(source) as gfile:
        gfile.rename(source, target, overwrite=True)


def remove(path: str) -> None:
    if not is_remote(path):
        os.remove(path)
        return
    with _gfile(path) as gfile:
        gfile.remove(path)


def remove_tree(path: str) -> None:
    """Removes a folder and what is in it; nothing where it does not exist."""
    if not is_remote(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(FileNotFoundError), _gfile(path) as gfile:
        gfile.rmtree(path)
