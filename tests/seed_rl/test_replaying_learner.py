"""The learner with a replay: its ratio, who enters it, and what is refused at the start."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from learners import make_learner, read_scalars, running, wait_until

from seed_rl.errors import UserError
from seed_rl.learner import Learner
from seed_rl.replay import memory

RATIO, BATCH_SIZE, MIN_SIZE = 0.7, 4, 12


def make_replaying(logdir: Any, **options: Any) -> Learner:
    small = {
        "replay_ratio": RATIO,
        "replay_buffer_size": 200,
        "replay_buffer_min_size": MIN_SIZE,
        "batch_size": BATCH_SIZE,
        "burn_in": 3,
        "lstm_size": 4,
        "dueling_size": 4,
        "network": "shallow",
    }
    return make_learner(logdir, agent="r2d2", **(small | options))


def source_of(learner: Learner) -> Any:
    return learner.source


def test_the_status_tells_what_the_first_batch_waits_for(tmp_path: Any, capfd: Any) -> None:
    size = 20_000  # which takes far longer to fill than the test does
    learner = make_replaying(
        tmp_path / "run", log_secs=0.1, replay_buffer_size=size, replay_buffer_min_size=size
    )
    told: list[str] = []

    def is_told() -> bool:
        told.append(capfd.readouterr().out)
        return f"/{size:,} unrolls" in "".join(told)

    with running(learner):
        wait_until(is_told, 30.0)
    assert learner.num_updates == 0


def test_the_ratio_holds_and_the_first_batch_waits_for_the_minimum(tmp_path: Any) -> None:
    """Samples trained on over unrolls inserted after the minimum, within the batches under way."""
    learner = make_replaying(tmp_path / "run")
    source = source_of(learner)
    train, inserted_at_first = learner.trainer, []

    def note(batch: Any) -> Any:
        inserted_at_first.append(source.limiter.state.num_inserted)
        return train(batch)

    learner.trainer = note  # type: ignore[assignment]
    with running(learner) as run:
        run.wait_for_updates(60)
    assert inserted_at_first[0] >= MIN_SIZE
    inserted, sampled = source.limiter.state
    assert abs(sampled - RATIO * (inserted - MIN_SIZE)) <= 2 * BATCH_SIZE + BATCH_SIZE
    # One batch may wait on the device, and one for that place.
    assert 0 <= sampled - learner.num_updates * BATCH_SIZE <= 2 * BATCH_SIZE
    # Every inserted step counts as a frame once, those before the minimum included.
    assert learner.num_frames >= 60 * BATCH_SIZE / RATIO * 5


@pytest.mark.parametrize("slow", ["training", "acting"])
def test_whoever_is_ahead_waits(tmp_path: Any, slow: str) -> None:
    """Case 5: actors stall behind a slow train step, and training waits for slow actors."""
    learner = make_replaying(tmp_path / "run")
    source = source_of(learner)
    if slow == "training":
        train = learner.trainer

        def wait(batch: Any) -> Any:
            time.sleep(0.2)
            return train(batch)

        learner.trainer = wait  # type: ignore[assignment]
    else:
        answer = learner.loop._answer

        def wait_and_answer(batch: Any) -> None:
            time.sleep(0.05)
            answer(batch)

        learner.loop._answer = wait_and_answer  # type: ignore[method-assign]
    with running(learner) as run:
        run.wait_for_updates(15)
        inserted, sampled = source.limiter.state
        allowed = RATIO * (inserted - MIN_SIZE)
    if slow == "training":
        # What slack lets in, and what the inference thread holds when it has to wait.
        assert 0 <= allowed - sampled <= 2 * BATCH_SIZE + RATIO * 8 + BATCH_SIZE
    else:
        assert sampled - allowed <= BATCH_SIZE + 1


def test_evaluation_environments_never_enter_the_replay(tmp_path: Any) -> None:
    """Case 87: their returns are told apart, and they explore by an epsilon of their own."""
    learner = make_replaying(
        tmp_path / "run", num_eval_envs=3, eval_epsilon=0.25, replay_buffer_size=500
    )
    source = source_of(learner)
    exploration = learner.inference._exploration.numpy()
    np.testing.assert_allclose(exploration[:5], 0.4 ** (1 + 7 * np.arange(5) / 4), rtol=1e-6)
    assert exploration[5:8].tolist() == [0.25] * 3
    with running(learner) as run:
        run.wait_for_updates(40)
        wait_until(lambda: "eval/return" in read_scalars(tmp_path / "run"), 30.0)
    stored = source._buffer._env_ids[: source._buffer._num_blocks]
    assert set(stored.tolist()) == set(range(5))
    scalars = read_scalars(tmp_path / "run")
    assert scalars["replay/unrolls"][-1] > MIN_SIZE
    assert scalars["episode/finished"]


def test_evaluation_environments_are_for_any_agent(tmp_path: Any) -> None:
    learner = make_learner(tmp_path / "run", num_eval_envs=4)
    seen = set()
    train = learner.trainer

    def note(batch: Any) -> Any:
        seen.update(batch.env_ids.tolist())
        return train(batch)

    learner.trainer = note  # type: ignore[assignment]
    with running(learner) as run:
        run.wait_for_updates(10)
        wait_until(lambda: "eval/return" in read_scalars(tmp_path / "run"), 30.0)
    assert seen == set(range(4))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"replay_buffer_min_size": 3}, ["--batch_size=4", "--replay_buffer_min_size=3"]),
        (
            {"replay_buffer_size": 3, "replay_buffer_min_size": 2},
            ["--batch_size=4", "--replay_buffer_size=3"],
        ),
        (
            {"replay_buffer_size": 20, "replay_buffer_min_size": 21},
            ["--replay_buffer_min_size=21", "--replay_buffer_size=20"],
        ),
    ],
)
def test_what_would_wait_for_ever_is_refused(
    tmp_path: Any, options: dict[str, int], named: list[str]
) -> None:
    """Case 85: at the start, in words of flags."""
    with pytest.raises(ValueError, match="--") as error:
        make_replaying(tmp_path / "run", **options)
    assert all(name in str(error.value) for name in named)


def test_a_replay_that_does_not_fit_is_refused(
    tmp_path: Any, monkeypatch: Any, caplog: Any
) -> None:
    """Case 86: before anything is allocated, and with the bytes; a flag overrides it."""
    monkeypatch.setattr("seed_rl.replayed.available_bytes", lambda: 1_000_000)
    with pytest.raises(UserError, match=r"--replay_buffer_size=200 takes .* MB"):
        make_replaying(tmp_path / "run")
    assert memory.describe_bytes(1_000_000) == "1.00 MB"
    with caplog.at_level("INFO"):
        learner = make_replaying(tmp_path / "run", check_replay_memory=False)
    assert "replay: 200 unrolls of 5 steps, " in caplog.text
    buffer = source_of(learner)._buffer
    frames = 200 * 5 * 84 * 84
    assert frames < buffer.num_bytes < 1.2 * frames  # every frame once
    with running(learner) as run:
        run.wait_for_updates(1)


def test_a_bad_update_names_whose_unroll_it_was(tmp_path: Any) -> None:
    """Case 61, for what only the train step meets."""
    learner = make_replaying(tmp_path / "run")
    to_device = learner.prefetcher._to_device

    def poison(batch: Any) -> Any:
        batch.steps[1][4, 2] = np.nan
        return to_device(batch)

    learner.prefetcher._to_device = poison
    with running(learner) as run:
        run.join(60.0)
        assert isinstance(run.failure, FloatingPointError)
        assert "reward" in str(run.failure)
        assert "environment" in str(run.failure)
