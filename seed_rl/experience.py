"""Carries whole unrolls from the inference threads to the train loop, in bounded memory.

A time-major batch buffer is filled on the host, and moved to the device, while the batch before it
is trained on.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from seed_rl.specs import ArraySpec, Nest
from seed_rl.unrolls import UnrollStore

if TYPE_CHECKING:  # they import TensorFlow
    from seed_rl.inference import Answers
    from seed_rl.types import Unrolls

# How often a wait looks whether the program is stopping.
_POLL_SECS = 0.1


class Stopped(Exception):  # noqa: N818 - a request, not an error
    """The program is shutting down."""


class HostBatch(NamedTuple):
    steps: list[np.ndarray]  # [rows, B, ...]
    states: list[np.ndarray]  # [B, ...]
    versions: np.ndarray  # int64 [..., B], the weights that answered the steps
    env_ids: np.ndarray  # int64 [B], whose unrolls they are
    num_transitions: int  # that environments made for it: what training advances by
    weights: np.ndarray | None = None  # float32 [B], of importance sampling
    keys: np.ndarray | None = None  # int64 [B], by which the source knows the unrolls


def wait_for(source: queue.Queue[HostBatch], stop: threading.Event) -> HostBatch:
    """The next batch in the queue. Raises Stopped when the program stops."""
    while not stop.is_set():
        try:
            return source.get(timeout=_POLL_SECS)
        except queue.Empty:
            continue
    raise Stopped


def acquire(semaphore: threading.Semaphore, stop: threading.Event) -> None:
    """Raises Stopped when the program stops."""
    while not semaphore.acquire(timeout=_POLL_SECS):
        if stop.is_set():
            raise Stopped


class BatchForm(NamedTuple):
    """What the arrays of batches are, and how a training step makes unrolls of them."""

    num_rows: int
    steps: Nest  # a Step of ArraySpecs, each of one row
    state: Nest
    has_weights: bool
    unpack: Callable[[Any, Nest, Any], Unrolls]  # of a Step, states and weights; builds a graph


class Batches(Protocol):
    """What a Prefetcher takes batches from."""

    def ask(self) -> None:
        """Tells that the train loop is done with the batch before, and waits for the next."""

    def get(self) -> HostBatch:
        """The next batch; give it back with `release`. Waits for it; raises Stopped."""

    def release(self, batch: HostBatch) -> None: ...


class Source(Batches, Protocol):
    """Where answered steps go and batches for training come from."""

    form: BatchForm

    # Called by the inference thread.

    def restart(self, env_ids: np.ndarray) -> None:
        """Drops the unrolls in progress of these environments: their actor has started anew."""

    def append(
        self, env_ids: np.ndarray, answers: Answers, observation: Sequence[np.ndarray], version: int
    ) -> np.ndarray:
        """Adds the answered steps, which `version` of the weights answered.

        `observation` holds the leaves of single, unstacked observations. Returns the ids of
        environments whose unroll is now whole: pass them to `put`.
        """

    def put(self, env_ids: np.ndarray) -> None:
        """Takes in the whole unrolls. Waits while training is behind; raises Stopped."""

    # Called by the train loop. A thread of its own calls `get` and `release`.

    def learned(self, keys: np.ndarray | None, priorities: np.ndarray | None) -> None:
        """Tells that the unrolls with these keys were trained on, and their new priorities.

        They are None where the agent has none, and where the update was skipped.
        """

    @property
    def has_news(self) -> bool:
        """Whether there is more to save than at the last checkpoint."""

    def saving(self, number: int) -> AbstractContextManager[None]:
        """Saves what training goes on with beside checkpoint `number`, written in this context."""

    def restore(self, number: int) -> None:
        """Goes on with what was saved with checkpoint `number`, which the run is resumed from.

        To be called before all else.
        """

    def threads(self) -> Mapping[str, Callable[[], None]]:
        """Bodies, by name, of threads that it needs."""

    def scalars(self) -> dict[str, float]:
        """How it stands, for TensorBoard."""

    def progress(self) -> str:
        """What the first batch waits for, for the status line; '' where for nothing special."""


class BatchQueue:
    """Batches of `batch_size` unrolls in the order in which the unrolls ended.

    When a batch is full that training has not asked for yet, `put` waits, and with it inference and
    all actors: that bounds the policy lag, since what is answered later is answered by weights that
    have learned more. There is one buffer, which is free again when it is on the device.
    """

    def __init__(
        self,
        batch_size: int,
        length: int,
        step_specs: Sequence[ArraySpec],
        state_specs: Sequence[ArraySpec],
        stop: threading.Event,
    ) -> None:
        self._batch_size = batch_size
        self._stop = stop
        num_transitions = batch_size * length
        self._free: queue.Queue[HostBatch] = queue.Queue(1)
        self._full: queue.Queue[HostBatch] = queue.Queue(1)
        self._free.put(
            HostBatch(
                [spec.zeros(length + 1, batch_size) for spec in step_specs],
                [spec.zeros(batch_size) for spec in state_specs],
                np.zeros((length + 1, batch_size), np.int64),
                np.zeros(batch_size, np.int64),
                num_transitions,
            )
        )
        self._asked = threading.Semaphore(0)
        self._open: HostBatch | None = None
        self._filled = 0
        self._is_first = True

    def put(self, store: UnrollStore, env_ids: np.ndarray) -> None:
        """Copies the whole unrolls of these environments out of the store.

        Waits as the class says; raises Stopped when the program stops.
        """
        for env_id in env_ids:
            if self._open is None:
                self._open = wait_for(self._free, self._stop)
            batch, column = self._open, self._filled
            for target, source in zip(batch.steps, store.steps, strict=True):
                target[:, column] = source[env_id]
            for target, source in zip(batch.states, store.states, strict=True):
                target[column] = source[env_id]
            batch.versions[:, column] = store.versions[env_id]
            batch.env_ids[column] = env_id
            self._filled += 1
            if self._filled == self._batch_size:
                self._full.put_nowait(batch)
                self._open, self._filled, self._is_first = None, 0, False
                acquire(self._asked, self._stop)

    def ask(self) -> None:
        """Training waits for the next batch: another one may be filled after that."""
        self._asked.release()

    def get(self) -> HostBatch:
        """The oldest full batch; give it back with `release`. Raises Stopped."""
        return wait_for(self._full, self._stop)

    def release(self, batch: HostBatch) -> None:
        self._free.put_nowait(batch)

    @property
    def waiting(self) -> int:
        """Full batches not taken yet."""
        return self._full.qsize()

    def progress(self) -> str:
        """How full the first batch is, for the status line; '' once it was."""
        if not self._is_first:
            return ""
        return f"first batch {self._filled:,}/{self._batch_size:,} unrolls"


class Prefetcher:
    """Keeps one batch on the device ahead of the train loop. `run` is the body of its thread."""

    def __init__(
        self, batches: Batches, to_device: Callable[[HostBatch], Any], stop: threading.Event
    ) -> None:
        self._batches = batches
        self._to_device = to_device
        self._stop = stop
        self._wanted = threading.Semaphore(1)
        self._is_asked = False
        self._ready: queue.Queue[Any] = queue.Queue(1)

    def run(self) -> None:
        """Moves batches until the program stops, then raises Stopped."""
        while True:
            acquire(self._wanted, self._stop)
            batch = self._batches.get()
            self._ready.put_nowait(self._to_device(batch))
            self._batches.release(batch)

    def get(self, timeout: float) -> Any | None:
        """The next batch on the device, or None when none came within `timeout` seconds."""
        if not self._is_asked:
            self._is_asked = True
            self._batches.ask()
        try:
            batch = self._ready.get(timeout=timeout)
        except queue.Empty:
            return None
        self._is_asked = False
        self._wanted.release()
        return batch
