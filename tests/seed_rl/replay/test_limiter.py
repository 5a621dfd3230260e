"""The replay ratio holds exactly, and whoever is ahead waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from seed_rl.experience import Stopped
from seed_rl.replay.limiter import LimiterState, RateLimiter
from seed_rl.threads import ThreadGroup

MIN_SIZE, BATCH_SIZE = 20, 8


def make_limiter(
    ratio: float, slack: float = 0.0, stop: threading.Event | None = None
) -> RateLimiter:
    return RateLimiter(ratio, MIN_SIZE, BATCH_SIZE, slack, stop or threading.Event())


@pytest.fixture
def group() -> Iterator[ThreadGroup]:
    group = ThreadGroup(threading.Event())
    yield group
    group.stop.set()
    group.join(10)
    group.raise_failure()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("slack", [0.0, 30.0])
@pytest.mark.parametrize("ratio", [0.1, 1 / 3, 0.75, 1.5, 8.0])
def test_the_ratio_holds_to_within_a_batch(group: ThreadGroup, ratio: float, slack: float) -> None:
    """At every moment, and at the end; without slack, too, the two don't wait for each other."""
    limiter = make_limiter(ratio, slack, group.stop)
    num_inserts = 1500

    def allowed(state: LimiterState) -> float:
        return ratio * (state.num_inserted - MIN_SIZE)

    def insert() -> None:
        for i in range(num_inserts):
            limiter.wait_to_insert()
            # Only the sampler goes on meanwhile, so that the difference can only be less.
            state = limiter.state
            assert allowed(state) - state.num_sampled <= slack
            limiter.add_inserted(i % 3)

    def sample() -> None:
        while True:
            limiter.wait_to_sample()
            # Only the inserter goes on meanwhile.
            state = limiter.state
            assert state.num_inserted >= MIN_SIZE
            assert state.num_sampled - BATCH_SIZE <= allowed(state)

    group.start("insert", insert)
    group.start("sample", sample)
    inserted = sum(i % 3 for i in range(num_inserts))

    def is_over() -> bool:
        group.raise_failure()
        state = limiter.state
        return state.num_inserted == inserted and state.num_sampled > allowed(state)

    wait_until(is_over)
    assert allowed(limiter.state) < limiter.state.num_sampled
    assert limiter.state.num_sampled <= allowed(limiter.state) + BATCH_SIZE


def test_the_first_batch_is_due_when_the_minimum_is_reached(group: ThreadGroup) -> None:
    limiter = make_limiter(0.01, stop=group.stop)
    limiter.add_inserted(MIN_SIZE - 1)
    group.start("sample", limiter.wait_to_sample)
    time.sleep(0.05)
    assert limiter.state == (MIN_SIZE - 1, 0)
    limiter.wait_to_insert()
    limiter.add_inserted(1)
    wait_until(lambda: limiter.state == (MIN_SIZE, BATCH_SIZE))


def test_the_other_side_wakes_those_who_wait(
    group: ThreadGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they look for themselves, which these would do in an hour."""
    monkeypatch.setattr("seed_rl.replay.limiter._POLL_SECS", 3600.0)
    limiter = make_limiter(1.0, slack=4.0)  # its event is not the group's, which ends at once
    events = [threading.Event() for _ in range(2)]

    def sample() -> None:
        limiter.wait_to_sample()
        events[0].set()

    def insert() -> None:
        limiter.wait_to_insert()
        events[1].set()

    group.start("sample", sample)
    time.sleep(0.05)
    limiter.add_inserted(MIN_SIZE)
    assert events[0].wait(10)

    limiter.add_inserted(BATCH_SIZE + 5)
    group.start("insert", insert)
    time.sleep(0.05)
    assert not events[1].is_set()
    limiter.wait_to_sample()
    assert events[1].wait(10)


@pytest.mark.parametrize("waits_before", [False, True])
def test_waits_end_with_the_program(waits_before: bool) -> None:
    stop = threading.Event()
    sampling, inserting = make_limiter(1.0, stop=stop), make_limiter(1.0, stop=stop)
    inserting.add_inserted(MIN_SIZE + 1)
    if waits_before:
        threading.Timer(0.05, stop.set).start()
    else:
        stop.set()
    with pytest.raises(Stopped):
        sampling.wait_to_sample()
    with pytest.raises(Stopped):
        inserting.wait_to_insert()
    assert (sampling.state, inserting.state) == ((0, 0), (MIN_SIZE + 1, 0))


def test_it_goes_on_from_a_state() -> None:
    before = make_limiter(1.5)
    before.add_inserted(MIN_SIZE + 100)
    for _ in range(10):
        before.wait_to_sample()
    stop = threading.Event()
    after = make_limiter(1.5, stop=stop)
    after.restore(LimiterState(*before.state))
    assert after.state == before.state == (MIN_SIZE + 100, 10 * BATCH_SIZE)
    for _ in range(9):  # these make 19, the first number whose samples are more than 150
        after.wait_to_sample()
    threading.Timer(0.05, stop.set).start()
    with pytest.raises(Stopped):
        after.wait_to_sample()


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf")])
def test_a_ratio_that_is_none_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="ratio is"):
        make_limiter(ratio)


@pytest.mark.parametrize("slack", [-1.0, float("nan")])
def test_slack_that_would_stop_both_sides_is_refused(slack: float) -> None:
    with pytest.raises(ValueError, match="slack is"):
        make_limiter(1.0, slack)
