"""The files of a saved replay. Each is there whole, or not at all.

A segment has the blocks [first, end): the arrays of ReplayBuffer.read_blocks, one after the other.
A manifest says what a replay consists of: a line of JSON with its segments and counters, then the
priorities. Either is one zlib stream, whose checksum tells whether it is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from seed_rl.replay.buffer import ReplayState
from seed_rl.specs import ArraySpec

# What a process that was killed leaves of the file that it was writing.
UNFINISHED = "unfinished"


class DamagedReplayError(Exception):
    """A file is missing, cut off or changed."""


class Segment(NamedTuple):
    name: str  # of its file
    first: int
    end: int
    num_bytes: int  # of its file


class Manifest(NamedTuple):
    settings: Mapping[str, float | str]  # with which alone the replay can be used
    counters: Mapping[str, float]  # of whoever fills it and samples from it
    state: ReplayState
    segments: Sequence[Segment]  # have all blocks of the state, in order


def write_segment(path: str, arrays: Sequence[np.ndarray], level: int) -> int:
    """Compresses contiguous arrays by this level of zlib; returns the size of the file."""
    compressor = zlib.compressobj(level)
    with _replacing(path) as file:
        for array in arrays:
            file.write(compressor.compress(array.data))
        file.write(compressor.flush())
        return file.tell()


def read_segment(path: str, specs: Sequence[ArraySpec], count: int) -> list[np.ndarray]:
    """The arrays `[count, ...]` of these specs. Raises DamagedReplayError."""
    sizes = [count * spec.num_bytes for spec in specs]
    decompressor = zlib.decompressobj()
    try:
        with open(path, "rb") as file:
            # A view, whose parts are no copies.
            raw = memoryview(decompressor.decompress(file.read(), sum(sizes) + 1))
    except (OSError, zlib.error) as error:
        raise DamagedReplayError(f"{path}: {error}") from error
    if not decompressor.eof or len(raw) != sum(sizes):
        raise DamagedReplayError(f"{path}: it is cut off, or of another size than {sum(sizes)}")
    ends = np.cumsum(sizes)
    return [
        np.frombuffer(raw[end - size : end], spec.dtype).reshape(count, *spec.shape)
        for spec, size, end in zip(specs, sizes, ends.tolist(), strict=True)
    ]


def write_manifest(path: str, manifest: Manifest) -> None:
    state = manifest.state
    description = {
        "settings": dict(manifest.settings),
        "counters": dict(manifest.counters),
        "state": [state.first, state.end, state.num_inserted],
        "segments": manifest.segments,
    }
    raw = json.dumps(description).encode() + b"\n" + state.priorities.tobytes()
    with _replacing(path) as file:
        file.write(zlib.compress(raw))


def read_manifest(path: str) -> Manifest:
    """Raises DamagedReplayError."""
    try:
        with open(path, "rb") as file:
            text, _, priorities = zlib.decompress(file.read()).partition(b"\n")
        description = json.loads(text)
        first, end, num_inserted = description["state"]
        return Manifest(
            description["settings"],
            description["counters"],
            ReplayState(first, end, num_inserted, np.frombuffer(priorities)),
            [Segment(*segment) for segment in description["segments"]],
        )
    except (OSError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise DamagedReplayError(f"{path}: {error}") from error


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name only when that is done."""
    unfinished = os.path.join(os.path.dirname(path), UNFINISHED)
    try:
        with open(unfinished, "wb") as file:
            yield file
        os.replace(unfinished, path)
    except OSError:  # a full disk needs the room
        with contextlib.suppress(OSError):
            os.remove(unfinished)
        raise
