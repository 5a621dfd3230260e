"""A run with a replay that stops and is started again, with what was saved or without."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np
import pytest
from learners import make_learner, running, wait_until

from seed_rl.learner import Learner
from seed_rl.replay import storage as storage_module

MIN_SIZE = 24


def make_replaying(logdir: Any, **options: Any) -> Learner:
    small = {
        "replay_buffer_size": 60,
        "replay_buffer_min_size": MIN_SIZE,
        "replay_ratio": 1.0,
        "burn_in": 3,
        "lstm_size": 4,
        "dueling_size": 4,
        "save_replay": True,
    }
    return make_learner(logdir, agent="r2d2", **(small | options))


class Saved(NamedTuple):
    state: Any  # of the buffer
    blocks: list[np.ndarray]
    counters: dict[str, float]


def state_of(learner: Learner) -> Saved:
    source: Any = learner.source
    with source._lock:
        buffer = source._buffer
        state = buffer.state(buffer.num_blocks)
        return Saved(state, buffer.read_blocks(state.first, state.end), source._counters())


def run_and_stop(learner: Learner, num_updates: int) -> Saved:
    """Trains; returns the replay as it was when the last checkpoint was written."""
    saved: list[Saved] = []
    save = learner._checkpoints.save

    def note(number: int) -> str:
        saved.append(state_of(learner))
        return save(number)

    learner._checkpoints.save = note  # type: ignore[method-assign]
    with running(learner) as run:
        run.wait_for_updates(num_updates)
    assert run.failure is None
    return saved[-1]


def test_resumes_with_the_replay(tmp_path: Any, monkeypatch: Any, caplog: Any) -> None:
    """Case 66: all goes on, and learning at once, from the very unrolls that there were."""
    monkeypatch.setattr(storage_module, "_SEGMENT_BYTES", 100_000)
    caplog.set_level(logging.INFO)
    # In checkpoints before the last, too.
    first = make_replaying(tmp_path / "run", save_checkpoint_secs=0.2)
    saved = run_and_stop(first, 20)
    assert "saved the replay" in caplog.text

    # The seed, so that what is not restored is another.
    resumed = make_replaying(tmp_path / "run", seed=1)
    assert resumed.num_updates == first.num_updates
    assert resumed.num_frames == first.num_frames
    agent: Any = resumed.trainer._agent
    for old, new in zip(first.trainer._agent.variables, agent.variables, strict=True):
        np.testing.assert_array_equal(old, new)
    target, online = agent._target.variables, agent._online.variables
    assert not all(map(np.array_equal, target, online))
    np.testing.assert_array_equal(resumed.inference._exploration, first.inference._exploration)

    now = state_of(resumed)
    # Between the two readings, inference may have inserted a few blocks.
    end, begin = now.state.end, saved.state.first
    assert end <= saved.state.end
    assert end > saved.state.end - 16
    kept = slice(begin - now.state.first, None)
    for array, wanted in zip(now.blocks, saved.blocks, strict=True):
        np.testing.assert_array_equal(array[kept], wanted[: end - begin])
    restored, wanted = now.state.priorities[kept], saved.state.priorities[: end - begin]
    np.testing.assert_array_equal(restored[wanted > 0], wanted[wanted > 0])
    assert np.count_nonzero(wanted) >= MIN_SIZE
    assert now.counters["surplus"] == pytest.approx(
        saved.counters["surplus"] + saved.counters["num_inserted"] - now.counters["num_inserted"]
    )
    # Every frame in the replay was or will be counted, but for those of unfinished unrolls.
    counted = now.state.end * 5
    assert resumed.num_frames + now.counters["transitions"] == counted

    caplog.clear()
    with running(resumed, tasks=[]) as run:  # without any actor
        run.wait_for_updates(first.num_updates + 1)
    assert "training waits" not in caplog.text
    assert run.failure is None


def test_resumes_without_the_replay(tmp_path: Any, caplog: Any) -> None:
    """Case 66: learning waits for the minimum again, which the log tells."""
    caplog.set_level(logging.INFO)
    first = make_replaying(tmp_path / "run", save_replay=False)
    run_and_stop(first, 5)
    assert not (tmp_path / "run/checkpoints/replay").exists()
    resumed = make_replaying(tmp_path / "run", save_replay=False)
    assert f"0 unrolls in the replay: training waits for {MIN_SIZE}" in caplog.text
    source: Any = resumed.source
    seen: list[int] = []
    train = resumed.trainer

    def note(batch: Any) -> Any:
        seen.append(source.limiter.state.num_inserted)
        return train(batch)

    resumed.trainer = note  # type: ignore[assignment]
    with running(resumed) as run:
        run.wait_for_updates(first.num_updates + 1)
    assert seen[0] >= MIN_SIZE


def test_a_changed_replay_is_told_and_starts_empty(tmp_path: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    first = make_replaying(tmp_path / "run")
    run_and_stop(first, 5)
    resumed = make_replaying(tmp_path / "run", burn_in=4, replay_buffer_size=70)
    (told,) = [text for text in caplog.messages if "without the saved replay" in text]
    assert "--burn_in was 3 and is 4, --replay_buffer_size was 60 and is 70" in told
    assert f"0 unrolls in the replay: training waits for {MIN_SIZE}" in caplog.text
    with running(resumed) as run:
        run.wait_for_updates(first.num_updates + 1)


def test_a_changed_ratio_holds_from_now_on(tmp_path: Any) -> None:
    """Rather than for all that is past: that would be a long wait for either side."""
    first = make_replaying(tmp_path / "run", replay_ratio=4.0)
    run_and_stop(first, 60)
    resumed = make_replaying(tmp_path / "run", replay_ratio=0.5)
    with running(resumed) as run:
        run.wait_for_updates(first.num_updates + 6, timeout=20)


def test_failure_of_the_thread_that_writes_ends_the_run(tmp_path: Any, monkeypatch: Any) -> None:
    """Case 70, for this one of the threads."""
    monkeypatch.setattr(storage_module, "_SEGMENT_BYTES", 100_000)
    learner = make_replaying(tmp_path / "run")

    def fail(first: int, end: int) -> Any:
        raise ZeroDivisionError("planted in the writer")

    source: Any = learner.source
    source._buffer.read_blocks = fail
    with running(learner) as run:
        wait_until(lambda: run.failure is not None, 30.0)
    assert isinstance(run.failure, ZeroDivisionError)


def test_stops_before_the_first_update_lose_nothing(tmp_path: Any, caplog: Any) -> None:
    """What came since the last checkpoint is saved, even where nothing was learned meanwhile."""
    caplog.set_level(logging.INFO)
    ends = [0]
    for _ in range(3):
        learner = make_replaying(
            tmp_path / "run", replay_buffer_size=4000, replay_buffer_min_size=4000
        )
        source: Any = learner.source
        assert source._buffer.num_blocks == ends[-1]
        caplog.clear()
        with running(learner):
            goal = ends[-1] + 20
            wait_until(lambda buffer=source._buffer, goal=goal: buffer.num_blocks >= goal, 30.0)
        assert learner.num_updates == 0
        assert "saved the replay" in caplog.text
        ends.append(source._storage._committed_end)
        assert ends[-1] >= goal
