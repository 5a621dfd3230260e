"""Keeps what is sampled and what is inserted in the ratio that was asked for."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import NamedTuple

from seed_rl.experience import Stopped

# How often a wait looks whether the program is stopping.
_POLL_SECS = 0.1


class LimiterState(NamedTuple):
    """Unrolls so far."""

    num_inserted: int
    num_sampled: int


class RateLimiter:
    """Makes whoever is ahead wait: those who sample, or those who insert.

    Let x = ratio * (inserted - min_size) be the unrolls that may be sampled by now. A batch may be
    taken where x is at least 0 and at least what was sampled before, so the first one when the
    minimum is reached; after that, samples are at most a batch above x. Inserting waits where they
    are more than `slack` below x. Since slack is not negative, the two never wait for each other.
    """

    def __init__(
        self, ratio: float, min_size: int, batch_size: int, slack: float, stop: threading.Event
    ) -> None:
        if not (math.isfinite(ratio) and ratio > 0):
            raise ValueError(f"ratio is {ratio}, wanted a number above 0")
        if not slack >= 0:
            raise ValueError(f"slack is {slack}, wanted a number of at least 0")
        self._ratio = ratio
        self._min_size = min_size
        self._batch_size = batch_size
        self._slack = slack
        self._stop = stop
        self._num_inserted = 0
        self._num_sampled = 0
        self._changed = threading.Condition()

    def wait_to_insert(self) -> None:
        """Returns when unrolls may be inserted. Raises Stopped when the program stops."""
        with self._changed:
            self._wait(lambda: self._allowed() - self._num_sampled <= self._slack)

    def add_inserted(self, count: int) -> None:
        """Counts unrolls that can be sampled from now on."""
        with self._changed:
            self._num_inserted += count
            self._changed.notify_all()

    def wait_to_sample(self) -> None:
        """Returns when a batch may be sampled, and counts it. Raises Stopped."""
        with self._changed:
            self._wait(lambda: self._allowed() >= self._num_sampled)
            self._num_sampled += self._batch_size
            self._changed.notify_all()

    @property
    def state(self) -> LimiterState:
        with self._changed:
            return LimiterState(self._num_inserted, self._num_sampled)

    def surplus(self, state: LimiterState) -> float:
        """How many more were sampled than the ratio allows."""
        return state.num_sampled - self._ratio * (state.num_inserted - self._min_size)

    def restore(self, state: LimiterState) -> None:
        """Goes on from `state`. Only together with the unrolls: an empty replay begins at 0."""
        with self._changed:
            self._num_inserted, self._num_sampled = state
            self._changed.notify_all()

    def _allowed(self) -> float:
        return self._ratio * (self._num_inserted - self._min_size)

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not self._stop.is_set():
            if self._changed.wait_for(condition, _POLL_SECS):
                return
        raise Stopped
