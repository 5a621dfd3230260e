"""Threads whose failure is not lost."""

from __future__ import annotations

import threading
import time
import traceback

import pytest

from seed_rl.experience import Stopped
from seed_rl.threads import ThreadGroup


def fail_in_here() -> None:
    raise ZeroDivisionError("first")


def test_first_failure_stops_all_and_is_raised_with_its_traceback() -> None:
    """Case 70."""
    group = ThreadGroup(threading.Event())
    ended = threading.Event()

    def waits() -> None:
        assert group.stop.wait(10)
        ended.set()
        raise ValueError("a consequence of the first")

    group.raise_failure()
    group.start("waits", waits)
    group.start("fails", fail_in_here)
    assert group.stop.wait(10)
    group.join(10)
    assert ended.is_set()
    with pytest.raises(ZeroDivisionError, match="first") as info:
        group.raise_failure()
    assert "fail_in_here" in "".join(traceback.format_tb(info.value.__traceback__))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), MemoryError()])
def test_a_failure_of_any_kind_counts(error: BaseException) -> None:
    group = ThreadGroup(threading.Event())

    def fail() -> None:
        raise error

    group.start("fails", fail)
    assert group.stop.wait(10)
    with pytest.raises(type(error)):
        group.raise_failure()


def test_an_exception_that_is_false_is_a_failure_too() -> None:
    class EmptyError(Exception):
        def __len__(self) -> int:
            return 0

    group = ThreadGroup(threading.Event())

    def fail() -> None:
        raise EmptyError

    group.start("fails", fail)
    assert group.stop.wait(10)
    group.start("fails", fail_in_here)
    group.join(10)
    with pytest.raises(EmptyError):
        group.raise_failure()


def test_ends_that_are_no_failures() -> None:
    group = ThreadGroup(threading.Event())

    def stopped() -> None:
        raise Stopped

    group.start("returns", lambda: None)
    group.start("stopped", stopped)
    time.sleep(0.1)
    assert not group.stop.is_set()
    group.join(10)
    group.raise_failure()
    assert group.stop.is_set()


def test_join_does_not_wait_for_ever() -> None:
    """Case 116: a thread that hangs must not keep the program from ending."""
    group = ThreadGroup(threading.Event())
    release = threading.Event()

    def hang() -> None:
        release.wait(30)

    group.start("hangs", hang)
    start = time.monotonic()
    group.join(0.1)
    assert time.monotonic() - start < 5
    release.set()
