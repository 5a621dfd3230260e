"""Counts of episodes, scalars and seconds."""

from __future__ import annotations

import contextlib
import math
import threading
import time

import numpy as np
import pytest

from seed_rl.envs.scores import ReferenceScores
from seed_rl.metrics import (
    Accumulator,
    Episode,
    EpisodeTracker,
    StageTimes,
    duration,
    human_normalized_score,
)
from seed_rl.types import StepType

FIRST, MID, TERMINATED, TRUNCATED = StepType


def test_returns_and_lengths_are_of_whole_episodes() -> None:
    """FIRST starts a count, also where the episode before was abandoned; its reward is not one."""
    tracker = EpisodeTracker(2)
    script = [  # environment, step type, raw reward
        (0, FIRST, 100),
        (0, MID, 1),
        (1, FIRST, 0),
        (0, TERMINATED, 2),
        (1, MID, 5),
        (0, FIRST, 0),
        (1, FIRST, 0),  # started anew in mid-episode
        (1, MID, -1),
        (0, MID, 0.5),
        (1, MID, -1),
        (1, TRUNCATED, -1),
        (0, TERMINATED, 0.25),
    ]
    ended = []
    for env_id, step_type, reward in script:
        ended += tracker.step(
            np.array([env_id]), np.array([step_type], np.uint8), np.array([reward], np.float32)
        )
    assert ended == [
        (0, Episode(3.0, 2)),
        (1, Episode(-3.0, 3)),
        (0, Episode(0.75, 2)),
    ]


def test_many_environments_in_one_step() -> None:
    tracker = EpisodeTracker(4)
    everyone = np.array([2, 0, 3, 1])
    tracker.step(everyone, np.full(4, FIRST), np.zeros(4))
    step_type = np.array([TERMINATED, MID, TRUNCATED, MID])
    ended = tracker.step(everyone, step_type, np.array([2.0, 0.0, 3.0, 1.0]))
    assert ended == [(2, Episode(2.0, 1)), (3, Episode(3.0, 1))]


def test_small_rewards_are_not_lost_in_large_returns() -> None:
    tracker = EpisodeTracker(1)
    env_id = np.array([0])
    tracker.step(env_id, np.array([FIRST]), np.zeros(1, np.float32))
    tracker.step(env_id, np.array([MID]), np.array([2**24], np.float32))
    for _ in range(10):
        tracker.step(env_id, np.array([MID]), np.ones(1, np.float32))
    ((_, episode),) = tracker.step(env_id, np.array([TERMINATED]), np.ones(1, np.float32))
    assert episode == Episode(2.0**24 + 11, 12)


def test_nothing_is_reported_of_an_interval_without_an_episode() -> None:
    """Case 42: it is absent, not NaN and not 0."""
    metrics = Accumulator()
    assert metrics.take() == {}
    assert metrics.recent_return() is None
    metrics.add({"loss": 2.0})
    assert metrics.take() == {"loss": 2.0}
    metrics.add_episode(Episode(3.0, 7))
    assert "episode/return" in metrics.take()
    assert metrics.take() == {}
    assert metrics.recent_return() == 3.0


def test_means_and_extremes() -> None:
    metrics = Accumulator()
    metrics.add({"a": 1.0, "b": 10.0})
    metrics.add({"a": 2.0})
    metrics.add_episode(Episode(-1.0, 10))
    metrics.add_episode(Episode(5.0, 30))
    assert metrics.take() == {
        "a": 1.5,
        "b": 10.0,
        "episode/return": 2.0,
        "episode/return_min": -1.0,
        "episode/return_max": 5.0,
        "episode/length": 20.0,
        "episode/finished": 2.0,
    }


def test_a_skipped_update_does_not_spoil_the_means() -> None:
    """Cases 42 and 61."""
    metrics = Accumulator()
    metrics.add({"loss": 1.0, "applied": 1.0, "norm": math.inf})
    metrics.add({"loss": math.nan, "applied": 0.0, "norm": -math.inf})
    assert metrics.take() == {"loss": 1.0, "applied": 0.5}


def test_recent_return_forgets_old_episodes() -> None:
    metrics = Accumulator()
    for value in range(1000):
        metrics.add_episode(Episode(float(value), 1))
        if value % 300 == 0:
            metrics.take()
    assert metrics.recent_return() == np.mean(range(900, 1000))


def test_nothing_is_lost_between_threads() -> None:
    metrics = Accumulator()
    stop = threading.Event()
    added = [0] * 3

    def add(i: int) -> None:
        while not stop.is_set():
            metrics.add_episode(Episode(1.0, 1))
            added[i] += 1

    threads = [threading.Thread(target=add, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    taken = sum(metrics.take().get("episode/finished", 0) for _ in range(200))
    stop.set()
    for thread in threads:
        thread.join()
    taken += metrics.take().get("episode/finished", 0)
    assert taken == sum(added) > 0


def test_stage_times() -> None:
    times = StageTimes()
    with times.measure("sleep"):
        time.sleep(0.02)
    with times.measure("sleep"):
        time.sleep(0.02)
    with contextlib.suppress(ZeroDivisionError), times.measure("failure"):
        time.sleep(0.01)
        raise ZeroDivisionError
    taken = times.take()
    assert set(taken) == {"sleep", "failure"}
    assert 0.04 <= taken["sleep"] < 5
    assert 0.01 <= taken["failure"] < 5
    assert times.take() == {}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0m00s"),
        (59.9, "0m59s"),
        (61, "1m01s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (90061, "25h01m"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_human_normalized_score() -> None:
    """0 for random play and 100 for people, also where all scores are below 0."""
    reference = ReferenceScores(random=-20.0, human=-10.0)
    scores = [human_normalized_score(score, reference) for score in (-20, -10, -15, 0, -25)]
    assert scores == [0, 100, 50, 200, -50]
