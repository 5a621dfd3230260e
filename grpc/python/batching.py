"""Gathers the messages of many streams into batches: where the server's and the learner's threads
meet.
"""

from __future__ import annotations

import collections
import threading
import time
from typing import Any

import numpy as np

from seed_rl.grpc.codec import Layout
from seed_rl.grpc.interface import Batch, Stats

# Buffers kept for the next batch. More are made where more batches are under way, and dropped.
_MAX_FREE_BUFFERS = 4


class Stream:
    """One actor's connection: it has at most one message under way."""

    __slots__ = ("answer", "batch", "is_awaited", "is_open", "since")

    def __init__(self) -> None:
        self.answer: Any = None  # asyncio.Future of the answer to the message under way
        self.batch: Batch | None = None  # the batch that holds its message until it is answered
        self.is_open = True
        self.is_awaited = True  # a message is expected at any moment
        self.since = time.monotonic()  # of its opening or last answer


class _Buffer:
    """The arrays of a batch, and their memory as bytes."""

    def __init__(self, layout: Layout, capacity: int) -> None:
        self.columns = layout.empty(capacity)
        self.restarted = np.zeros(capacity, bool)
        self.memory = [column.reshape(-1).view(np.uint8).data for column in self.columns]


class Batcher:
    """The open batch, and the closed ones that nobody has taken yet.

    A batch closes when it is full, when no stream is left that could add to it, or, once somebody
    waits for it, `timeout_secs` after its first row. So there are never more batches than streams.
    A stream that has sent nothing for `waited_for_secs` is no longer waited for.

    The `origin` of its batches is who sent which rows: stream, first row, number of rows.
    """

    def __init__(
        self, layout: Layout, capacity: int, timeout_secs: float, waited_for_secs: float
    ) -> None:
        self._layout = layout
        self._sizes = [spec.num_bytes for _, spec in layout.fields]
        self._capacity = capacity
        self._timeout_secs = timeout_secs
        self._waited_for_secs = waited_for_secs
        self._changed = threading.Condition(threading.Lock())  # guards all that follows
        self._open: Batch | None = None
        self._open_buffer = _Buffer(layout, capacity)
        self._deadline = 0.0
        self._ready: collections.deque[tuple[Batch, _Buffer]] = collections.deque()
        self._free = [_Buffer(layout, capacity)]
        self._num_awaited = 0
        self._num_batches = 0
        self._num_rows = 0
        self._failure: BaseException | None = None
        self._held = threading.local()  # the buffer of the batch that a thread took last

    def stats(self) -> Stats:
        with self._changed:
            return Stats(self._num_rows, self._num_batches, self._capacity)

    # Called by the server's thread.

    def open_stream(self, stream: Stream) -> None:
        with self._changed:
            self._num_awaited += 1

    def end_stream(self, stream: Stream) -> None:
        """Forgets a stream. A message of its that nobody took yet is batched, not answered."""
        with self._changed:
            if not stream.is_open:
                return
            stream.is_open = False
            if stream.batch is not None and stream.batch is self._open:
                # Whoever takes the environments over may send the same ids any moment.
                self._close()
            self._stop_waiting(stream)

    def add(
        self, stream: Stream, message: bytes, start: int, n: int, restarted: np.ndarray | None
    ) -> None:
        """Appends a checked message of n rows, at most the capacity, to the open batch."""
        with self._changed:
            batch = self._open
            if batch is not None and batch.size + n > self._capacity:
                self._close()
                batch = None
            if batch is None:
                buffer = self._open_buffer
                batch = self._open = Batch(0, buffer.columns, buffer.restarted, [])
                self._deadline = time.monotonic() + self._timeout_secs
                self._changed.notify()  # whoever waits may have to wait less now
            first, last = batch.size, batch.size + n
            source = memoryview(message)
            for memory, size in zip(self._open_buffer.memory, self._sizes, strict=True):
                stop = start + n * size
                memory[first * size : last * size] = source[start:stop]
                start = stop
            batch.restarted[first:last] = False if restarted is None else restarted
            batch.size = last
            batch.origin.append((stream, first, n))
            stream.batch = batch
            if last == self._capacity:
                self._close()
            self._stop_waiting(stream)

    def forget_silent_streams(self, streams: list[Stream]) -> None:
        """Stops waiting for those that have sent nothing for long."""
        silent_since = time.monotonic() - self._waited_for_secs
        with self._changed:
            for stream in streams:
                if stream.is_awaited and stream.since < silent_since:
                    self._stop_waiting(stream)

    def fail(self, failure: BaseException) -> None:
        """From now on all calls of the learner raise `failure`."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    # Called by the learner's threads.

    def take(self, timeout_secs: float) -> Batch | None:
        """The next batch, or None after `timeout_secs`."""
        until = time.monotonic() + timeout_secs
        with self._changed:
            held = getattr(self._held, "buffer", None)
            if held is not None:
                self._held.buffer = None
                if len(self._free) < _MAX_FREE_BUFFERS:
                    self._free.append(held)
            while True:
                if self._failure is not None:
                    raise self._failure
                now = time.monotonic()
                wake = until
                if not self._ready and self._open is not None:
                    if now >= self._deadline:
                        self._close()
                    else:
                        wake = min(until, self._deadline)
                if self._ready:
                    batch, self._held.buffer = self._ready.popleft()
                    return batch
                if now >= until:
                    return None
                self._changed.wait(wake - now)

    def answered(self, batch: Batch) -> None:
        """Its streams are about to get their answers, and can send again."""
        now = time.monotonic()
        with self._changed:
            if self._failure is not None:
                raise self._failure
            for stream, _, _ in batch.origin:
                if stream.batch is not batch:
                    raise RuntimeError("a batch was replied to twice")
                stream.batch = None
                stream.since = now
                if stream.is_open:
                    stream.is_awaited = True
                    self._num_awaited += 1

    # With the lock held.

    def _stop_waiting(self, stream: Stream) -> None:
        if stream.is_awaited:
            stream.is_awaited = False
            self._num_awaited -= 1
        if not self._num_awaited and self._open is not None:
            self._close()

    def _close(self) -> None:
        batch, buffer = self._open, self._open_buffer
        assert batch is not None
        batch.restarted = buffer.restarted[: batch.size]
        self._num_batches += 1
        self._num_rows += batch.size
        self._ready.append((batch, buffer))
        self._open = None
        self._open_buffer = (
            self._free.pop() if self._free else _Buffer(self._layout, self._capacity)
        )
        self._changed.notify()
