"""The learner with real actors, over real sockets, in one process."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
import time
import traceback
from typing import Any

import numpy as np
import pytest
from learners import make_learner, read_scalars, running, wait_until

from seed_rl import learner as learner_module
from seed_rl.errors import UserError


def test_trains_finishes_and_tells_actors(tmp_path: Any) -> None:
    """Case 116: actors end by themselves, without an error, when the training is over."""
    learner = make_learner(tmp_path / "run", total_environment_frames=400)
    with running(learner) as run:
        run.join(60.0)
        assert run.failure is None
        assert run.actor_failures == []
        assert learner.num_frames == 400
    assert glob.glob(str(tmp_path / "run/checkpoints/ckpt-20.index"))


def test_the_learner_never_forks(tmp_path: Any) -> None:
    """Case 112: not while its threads run, nor do its actors: environments alone may do so.

    What starts a program, as subprocess does, runs no handlers of forks, and is no danger.
    """
    forks: list[str] = []
    is_watched = True

    def note() -> None:
        if is_watched:
            forks.append("".join(traceback.format_stack()))

    os.register_at_fork(before=note)  # for the rest of the process
    try:
        with running(make_learner(tmp_path / "run", total_environment_frames=400)) as run:
            run.join(60.0)
            assert run.failure is None
        assert forks == []
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        assert len(forks) == 1  # so that a fork would have been seen
    finally:
        is_watched = False


def test_batches_that_do_not_fit_in_memory_are_refused(tmp_path: Any) -> None:
    with pytest.raises(UserError, match=r"--batch_size=1000000000 takes .* set it to \d+"):
        make_learner(tmp_path / "run", batch_size=1_000_000_000)
    assert not (tmp_path / "run/config.json").exists()


def test_stop_saves_and_the_same_command_resumes(tmp_path: Any) -> None:
    """Case 66: counters and optimizer go on where they stopped."""
    with running(make_learner(tmp_path / "run")) as run:
        run.wait_for_updates(8)
        started = time.monotonic()
        run.stop.set()
        run.join(5.0)
        assert time.monotonic() - started < 5.0 + 20.0
        assert run.failure is None
        updates = run.learner.num_updates
    resumed = make_learner(tmp_path / "run")
    assert resumed.num_updates == updates
    assert resumed.num_frames == updates * 4 * 5
    assert int(resumed.optimizer.num_updates) == updates
    with running(resumed) as run:
        run.wait_for_updates(updates + 3)


def test_weights_that_act_are_those_that_train(tmp_path: Any) -> None:
    """Case 72: after training, inference answers a fixed observation otherwise than before."""
    learner = make_learner(tmp_path / "run", learning_rate=0.01)
    frame = [np.full((1, 84, 84), 200, np.uint8)]

    def logits() -> np.ndarray:
        zeros = np.zeros(1, np.uint8), np.zeros(1, np.float32)
        answers = learner.inference(np.zeros(1, np.int32), *zeros, frame, 1)
        return answers.step.extras["policy"].copy()

    before = logits()
    with running(learner) as run:
        run.wait_for_updates(20)
    assert np.abs(logits() - before).max() > 1e-3


def test_slow_learner_stalls_actors_and_bounds_the_lag(tmp_path: Any) -> None:
    """Case 5: nothing piles up behind a slow train step, and the policy lag stays bounded."""
    learner = make_learner(tmp_path / "run")
    train = learner.trainer
    waiting, lags, steps = [], [], []

    def slow(batch: Any) -> Any:
        time.sleep(0.3)
        waiting.append(learner.source.scalars()["queue/full_batches"])
        lags.append(int((learner.num_updates - batch.versions).max()))
        steps.append(learner.loop.agent_steps)
        return train(batch)

    learner.trainer = slow  # type: ignore[assignment]
    with running(learner) as run:
        run.wait_for_updates(12)
    assert max(waiting) <= 1
    # One in the buffer, one on the device, one trained on; and an unroll in progress began
    # NUM_ENVS * unroll_length / (batch_size * unroll_length) = 2 updates before it ends.
    assert max(lags) <= 3 + 2
    # Once all is full, an update lets through what it consumes: 4 unrolls of 5 steps.
    assert np.mean(np.diff(steps[5:])) < 1.5 * 4 * 5


def test_trains_with_an_actor_missing_and_names_it(tmp_path: Any, caplog: Any) -> None:
    """Case 40: N - 1 actors are enough, and the absent environments are named."""
    learner = make_learner(tmp_path / "run")
    learner.reporter.missing_secs = 1.0
    with caplog.at_level("WARNING"), running(learner, tasks=[0]) as run:
        run.wait_for_updates(10)
        wait_until(lambda: "4 of 8 environments: 4-7" in caplog.text, 20.0)
        started = time.monotonic()
        run.stop.set()
        run.join(5.0)
    assert time.monotonic() - started < 5.0 + 20.0
    assert run.failure is None


@pytest.mark.parametrize("place", ["inference", "prefetch", "train"])
def test_failure_in_any_thread_ends_the_run(tmp_path: Any, place: str) -> None:
    """Case 70: what failed is raised by run(), within seconds; no checkpoint is written."""
    learner = make_learner(tmp_path / "run")

    def fail(*args: Any) -> Any:
        raise ZeroDivisionError(f"planted in {place}")

    if place == "inference":
        learner.loop._inference = fail  # type: ignore[assignment]
    elif place == "prefetch":
        learner.prefetcher._to_device = fail
    else:
        learner.trainer = fail  # type: ignore[assignment]
    with running(learner) as run:
        run.join(10.0)
        assert isinstance(run.failure, ZeroDivisionError)
        assert place in str(run.failure)
    assert not glob.glob(str(tmp_path / "run/checkpoints/*.index"))


def test_stage_times_add_up_to_wall_time(tmp_path: Any) -> None:
    """Case 28: the stages of each thread explain its wall time, within 10 %."""
    learner = make_learner(tmp_path / "run", log_secs=2.0)
    with running(learner) as run:
        wait_until(lambda: len(read_scalars(tmp_path / "run").get("train/loss", [])) >= 3, 60.0)
    del run
    scalars = read_scalars(tmp_path / "run")
    for thread in ("learner", "inference"):
        stages = [
            np.array(values[1:-1]) for name, values in scalars.items() if f"time_{thread}/" in name
        ]
        whole = min(len(values) for values in stages)
        total = np.mean([values[-whole:] for values in stages], axis=1).sum()
        assert total == pytest.approx(1.0, abs=0.1), thread
    assert all(0 < fill <= 1 for fill in scalars["inference/batch_fill"])
    assert all(rate > 0 for rate in scalars["speed/frames_per_second"][1:])
    assert all(lag >= 0 for lag in scalars["policy_lag/mean"])


def test_one_learner_a_logdir_and_an_address(tmp_path: Any) -> None:
    """Case 111: the second learner is refused; the first one's files are as they were."""
    first = make_learner(tmp_path / "run")
    with pytest.raises(UserError, match="another learner runs"):
        make_learner(tmp_path / "run")
    with pytest.raises(OSError, match="in use"):
        make_learner(tmp_path / "other", server_address=first.address)
    with running(first) as run:
        run.wait_for_updates(1)


def test_bad_updates_end_the_run_before_they_reach_a_checkpoint(tmp_path: Any) -> None:
    """Case 61: an update that is not finite stops the run, naming where to look."""
    learner = make_learner(tmp_path / "run")
    to_device = learner.prefetcher._to_device

    def poison(batch: Any) -> Any:
        batch.steps[1][2, 3] = np.nan  # rewards
        return to_device(batch)

    learner.prefetcher._to_device = poison
    with running(learner) as run:
        run.join(30.0)
        assert isinstance(run.failure, FloatingPointError)
        assert "reward" in str(run.failure)
        assert "environment" in str(run.failure)
    assert not glob.glob(str(tmp_path / "run/checkpoints/*.index"))


def test_environments_that_start_anew_are_named(tmp_path: Any, caplog: Any) -> None:
    """A second life of an actor drops its unfinished unrolls, and the log says whose."""
    learner = make_learner(tmp_path / "run")
    with caplog.at_level("WARNING"), running(learner, tasks=[0]) as run:
        run.wait_for_updates(2)
        learner_module._logger.info("planting a second life")
        learner.loop._restart(np.arange(4))
        assert "environments 0-3 start anew" in caplog.text


def test_a_refused_start_leaves_the_log_dir_as_it_was(tmp_path: Any) -> None:
    """A mistyped game claims no folder; a resume that does not fit keeps the run's settings."""
    with pytest.raises(UserError, match="NoSuchGame"):
        make_learner(tmp_path / "run", "gym", game="NoSuchGame-v0")
    with running(make_learner(tmp_path / "run")) as run:
        run.wait_for_updates(1)
    config = (tmp_path / "run/config.json").read_bytes()
    with pytest.raises(UserError, match="agent_config/lstm_size was 0 and is 8"):
        make_learner(tmp_path / "run", lstm_size=8)
    assert (tmp_path / "run/config.json").read_bytes() == config


EDGES = '''
import gymnasium, numpy as np

class Edges(gymnasium.Env):
    """Pays +1 or -1, by the action, only at the last and first steps of unrolls of 5."""
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (10,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def _observe(self):
        return np.eye(10, dtype=np.float32)[self.time % 10]

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return self._observe(), {}

    def step(self, action):
        pays = self.time % 5 in (4, 0)
        self.time += 1
        return self._observe(), (2.0 * action - 1.0) * pays, self.time == 10, False, {}
'''


def test_learns_from_rewards_at_the_edges_of_unrolls(tmp_path: Any, monkeypatch: Any) -> None:
    """Case 48: what is paid at steps k * T - 1 and k * T is learned from, 4 of 4 at best."""
    (tmp_path / "edges.py").write_text(EDGES)
    monkeypatch.syspath_prepend(tmp_path)
    learner = make_learner(tmp_path / "run", "edges:Edges", learning_rate=0.003)
    with running(learner) as run:
        wait_until(lambda: (learner._metrics.recent_return() or 0.0) > 3.0, 90.0)
    assert run.failure is None


def test_training_goes_on_when_a_checkpoint_cannot_be_saved(tmp_path: Any, caplog: Any) -> None:
    """A disk that is full for a while costs a checkpoint, not the run."""
    learner = make_learner(tmp_path / "run", save_checkpoint_secs=0.5)
    save = learner._checkpoints.save
    attempts: list[int] = []

    def fill_the_disk_once(number: int) -> str:
        attempts.append(number)
        if len(attempts) == 1:
            raise OSError(28, "No space left on device")
        return save(number)

    learner._checkpoints.save = fill_the_disk_once  # type: ignore[method-assign]
    with running(learner) as run:
        wait_until(lambda: len(attempts) >= 2, 60.0)
    assert run.failure is None
    assert "could not save a checkpoint" in caplog.text
    assert "No space left on device" in caplog.text
    assert glob.glob(str(tmp_path / "run/checkpoints/*.index"))


def test_failure_of_a_thread_ends_the_process_with_its_traceback(tmp_path: Any) -> None:
    """Case 70: in a real learner process, which doesn't linger with its other threads."""
    code = """
import sys
from seed_rl.__main__ import main
from seed_rl.experience import Prefetcher
def fail(self):
    raise ZeroDivisionError("planted in the prefetch thread")
Prefetcher.run = fail
sys.exit(main(sys.argv[1:]))
"""
    done = subprocess.run(
        [
            *(sys.executable, "-c", code, "--environment=catch", f"--logdir={tmp_path}/run"),
            f"--server_address=unix:{tmp_path}/socket",
        ],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: planted in the prefetch thread"
    assert "in fail" in done.stderr
