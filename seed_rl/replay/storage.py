"""Saves a replay with checkpoints, and restores it, while it is being filled and sampled from.

Blocks of a ReplayBuffer don't change, so each is written once, soon after it came, together with
its neighbours. What is left for a checkpoint is the last few blocks and a small manifest.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from seed_rl.replay.buffer import ReplayBuffer
from seed_rl.replay.files import (
    UNFINISHED,
    DamagedReplayError,
    Manifest,
    Segment,
    read_manifest,
    read_segment,
    write_manifest,
    write_segment,
)
from seed_rl.replay.memory import describe_bytes

_logger = logging.getLogger(__name__)
# A segment is copied while nobody else can use the buffer: for some milliseconds.
_SEGMENT_BYTES = 8_000_000
# Of zlib: frames of games shrink to few percent, several times as quickly as by its default.
_LEVEL = 1
# When more segments wait, they are not compressed, which is many times quicker for noise.
_MOST_WAITING = 16
# A checkpoint starts no segment after that: training stands still, and soon inference as well.
_FLUSH_SECS = 0.5
_POLL_SECS = 0.1
_RETRY_SECS = 30.0


class ReplayStorage:
    """The saved states of one run's replay, in a folder of their own.

    `lock` guards the buffer. A replay is only restored by one with equal `settings`, which are
    called by the names of their flags.
    """

    def __init__(
        self,
        folder: str,
        buffer: ReplayBuffer,
        lock: threading.Lock,
        settings: Mapping[str, float | str],
    ) -> None:
        self._folder = folder
        self._buffer = buffer
        self._lock = lock
        self._settings = dict(settings)
        self._specs = buffer.block_specs
        block_bytes = sum(spec.num_bytes for spec in self._specs)
        self._segment_blocks = max(_SEGMENT_BYTES // block_bytes, 1)

        self._writing = threading.Lock()  # held around all that writes; taken before `lock`
        self._is_saving = False
        # They have, without gaps, the blocks before `_next` that the buffer still has.
        self._segments: list[Segment] = []
        self._next = 0
        # Files of the newest checkpoint. Until the next is there whole, they stay as they are.
        self._committed: set[str] = set()
        self._committed_end = 0  # how many blocks there were at that time, ever
        self._num_written = 0  # bytes, since the last checkpoint

    def run(self, stop: threading.Event) -> None:
        """The body of a thread that writes blocks as they come, until the program stops."""
        pause = _POLL_SECS
        while not stop.wait(pause):
            try:
                while not (stop.is_set() or self._is_saving) and self._append_if_full():
                    pass
                pause = _POLL_SECS
            except OSError as error:
                pause = _RETRY_SECS
                _logger.error(
                    "could not write the replay, trying again in %.0f s: %s", pause, error
                )

    @property
    def has_news(self) -> bool:
        """Whether blocks came since the newest checkpoint that has its replay."""
        return self._buffer.num_blocks > self._committed_end

    @contextlib.contextmanager
    def saving(self, number: int, counters: Callable[[], Mapping[str, float]]) -> Iterator[None]:
        """Saves the replay with checkpoint `number`, which is to be written in this context.

        `counters` is called while the buffer is locked, and returned by `restore`. The checkpoint
        before, if it had its replay, has it until this context is left. Where files can't be
        written, the checkpoint has none, and an error is logged.
        """
        deadline = time.monotonic() + _FLUSH_SECS
        self._is_saving = True  # the thread would take the lock again before we can
        with self._writing:
            self._is_saving = False
            manifest = None
            try:
                manifest = self._save(number, counters, deadline)
            except OSError as error:
                _logger.error("could not save the replay with checkpoint %d: %s", number, error)
            yield
            if manifest is not None:
                self._committed = {segment.name for segment in manifest.segments}
                self._committed.add(_manifest_name(number))
                self._committed_end = manifest.state.end
                self._sweep()

    def restore(self, number: int) -> Mapping[str, float] | None:
        """Fills the buffer with what was saved with checkpoint `number`; returns its counters.

        To be called before all else. Where there is nothing that can be used, warns, leaves the
        buffer as good as empty and returns None.
        """
        name = _manifest_name(number)
        path = self._path(name)
        if not os.path.exists(path):
            _logger.warning("checkpoint %d has no replay with it: starting with none", number)
            return None
        try:
            manifest = read_manifest(path)
            if changes := self._changes(manifest.settings):
                _logger.warning("starting without the saved replay: %s", changes)
                return None
            _logger.info("restoring the replay")
            self._read_blocks(manifest)
        except DamagedReplayError as error:
            _logger.warning("starting without the saved replay, which is damaged: %s", error)
            return None
        self._buffer.restore(manifest.state)
        self._segments, self._next = list(manifest.segments), manifest.state.end
        self._committed_end = manifest.state.end
        self._committed = {name, *(segment.name for segment in self._segments)}
        _logger.info("restored %s unrolls of the replay", f"{self._buffer.num_unrolls:,}")
        return manifest.counters

    def _read_blocks(self, manifest: Manifest) -> None:
        for segment in manifest.segments:
            path = self._path(segment.name)
            arrays = read_segment(path, self._specs, segment.end - segment.first)
            # Its first blocks may have been overwritten when the replay was saved.
            first = max(segment.first, manifest.state.first)
            try:
                self._buffer.write_blocks(first, [a[first - segment.first :] for a in arrays])
            except ValueError as error:
                raise DamagedReplayError(f"{path}: {error}") from error

    def _changes(self, settings: Mapping[str, float | str]) -> str:
        return ", ".join(
            f"{name} was {settings.get(name)} and is {value}"
            for name, value in self._settings.items()
            if settings.get(name) != value
        )

    def _save(
        self, number: int, counters: Callable[[], Mapping[str, float]], deadline: float
    ) -> Manifest:
        with self._lock:
            end = self._buffer.num_blocks
        while self._next < end and time.monotonic() < deadline:
            self._append_segment(level=0)  # it is little, and soon done
        with self._lock:
            state = self._buffer.state(self._next)
            own = counters()
        self._drop_overwritten(state.first)
        manifest = Manifest(self._settings, own, state, tuple(self._segments))
        os.makedirs(self._folder, exist_ok=True)
        write_manifest(self._path(_manifest_name(number)), manifest)
        _logger.info(
            "saved the replay: %s blocks, %s written since the last time, %s in all",
            f"{state.end - state.first:,}",
            describe_bytes(self._num_written),
            describe_bytes(sum(segment.num_bytes for segment in self._segments)),
        )
        if self._next < end:
            _logger.warning(
                "the saved replay lacks the newest %s blocks: they come faster than they are "
                "written",
                f"{end - self._next:,}",
            )
        self._num_written = 0
        return manifest

    def _append_if_full(self) -> bool:
        """Whether there were enough blocks for a segment."""
        with self._writing:
            with self._lock:
                num_blocks = self._buffer.num_blocks - max(self._next, self._buffer.first_block)
            waiting = num_blocks / self._segment_blocks
            if waiting >= 1:
                self._append_segment(_LEVEL if waiting <= _MOST_WAITING else 0)
        return waiting >= 1

    def _append_segment(self, level: int) -> None:
        """Writes the next blocks, as many as there are and a segment may have."""
        os.makedirs(self._folder, exist_ok=True)
        with self._lock:
            oldest = self._buffer.first_block
            # Where blocks were overwritten before they were written, so were all before them.
            first = max(self._next, oldest)
            end = min(first + self._segment_blocks, self._buffer.num_blocks)
            arrays = self._buffer.read_blocks(first, end)
        # Unlike that of any other process that wrote to this folder, whatever became of it.
        name = f"blocks-{first}-{end}-{secrets.token_hex(4)}"
        num_bytes = write_segment(self._path(name), arrays, level)
        self._segments.append(Segment(name, first, end, num_bytes))
        self._next = end
        self._num_written += num_bytes
        self._drop_overwritten(oldest)

    def _drop_overwritten(self, first_block: int) -> None:
        overwritten = [s.name for s in self._segments if s.end <= first_block]
        self._segments = self._segments[len(overwritten) :]
        for name in overwritten:
            if name not in self._committed:
                os.remove(self._path(name))

    def _sweep(self) -> None:
        """Deletes what neither the newest checkpoint has nor the next one will have."""
        kept = self._committed | {segment.name for segment in self._segments}
        try:
            for name in os.listdir(self._folder):
                if name.startswith(("blocks-", "ckpt-", UNFINISHED)) and name not in kept:
                    os.remove(self._path(name))
        except OSError as error:
            _logger.warning("could not delete old files of the replay: %s", error)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


def _manifest_name(number: int) -> str:
    return f"ckpt-{number}"
