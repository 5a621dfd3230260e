"""The actor against a real server, with environments of a user's module."""

import json
import logging
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from seed_rl import actor as actor_module
from seed_rl.actor import ActorConfig, run_actor
from seed_rl.errors import UserError
from seed_rl.grpc.codec import action_layout, step_layout
from seed_rl.grpc.server import ServerClosed, make_server
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType

# Observes its step number and its last action, in one array that all of them write to.
ENVIRONMENT = """
import gymnasium
import numpy as np

class Counter(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
    action_space = gymnasium.spaces.Discrete(100)
    observation = np.zeros(2, np.uint8)

    def reset(self, seed=None, options=None):
        self.steps = 0
        self.observation[:] = 0
        return self.observation, {}

    def step(self, action):
        self.steps += 1
        self.observation[:] = [self.steps, action]
        return self.observation, float(action), self.steps == 3, False, {}
"""
FORKING = """
import os
import subprocess
import sys

def fork():
    if not os.fork():
        os._exit(0)
    os.wait()
    subprocess.run([sys.executable, "-c", "pass"], check=True)

class Forking(Counter):
    def __init__(self):
        fork()

    def step(self, action):
        fork()
        return super().step(action)
"""
FAILING = """
class Failing(Counter):
    def step(self, action):
        if self.steps == 2:
            raise OSError("the emulator is gone")
        return super().step(action)
"""


class Learner:
    """A server whose rows are answered with the number of the row's environment's steps so far."""

    def __init__(self, address="localhost:0", environment="counter_env:Counter", **options):
        description = {
            "environment": environment,
            "environment_config": {},
            "seed": 1,
            "num_envs": 4,
            "env_batch_size": 2,
            **options.pop("description", {}),
        }
        self.server = make_server(
            address,
            step_layout(options.pop("observation", ArraySpec((2,), "uint8"))),
            action_layout(ArraySpec((), "int32", 0, 99)),
            json.dumps(description),
            num_envs=4,
            batch_size=4,
            batch_timeout_secs=0.01,
            **options,
        )
        self.address = self.server.address
        self.rows = []  # (env id, step type, reward, raw reward, observation, restarted, action)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_for_rows(self, count):
        until = time.monotonic() + 60
        while len(self.rows) < count:
            assert time.monotonic() < until, f"saw {len(self.rows)} rows, wanted {count}"
            time.sleep(0.01)

    def close(self, finished):
        self.server.close(finished)
        self._thread.join()

    def _run(self):
        counts = np.zeros(4, np.int32)
        try:
            while True:
                batch = self.server.next_batch(1.0)
                if batch is None:
                    continue
                columns = [column[: batch.size] for column in batch.columns]
                counts[columns[0]] += 1
                actions = counts[columns[0]] % 100
                self.rows += zip(
                    *(column.tolist() for column in columns),
                    batch.restarted.tolist(),
                    actions.tolist(),
                    strict=True,
                )
                self.server.reply(batch, [actions])
        except ServerClosed:
            pass


class Actor(threading.Thread):
    """run_actor in a thread."""

    def __init__(self, learner, **config):
        super().__init__(daemon=True)
        self._config = ActorConfig(server_address=learner.address, **config)
        self._failure = None
        self.start()

    def run(self):
        try:
            run_actor(self._config)
        except BaseException as error:
            self._failure = error

    def result(self):
        """Returns or raises as run_actor did."""
        self.join(60)
        assert not self.is_alive()
        if self._failure is not None:
            raise self._failure


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    monkeypatch.setattr(actor_module, "_FIRST_DELAY_SECS", 0.05)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # of processes
    (tmp_path / "counter_env.py").write_text(ENVIRONMENT + FORKING + FAILING)
    yield
    sys.modules.pop("counter_env", None)


@pytest.fixture
def make_learner():
    learners = []

    def make(*args, **kwargs):
        learners.append(Learner(*args, **kwargs))
        return learners[-1]

    yield make
    for learner in learners:
        learner.close(finished=False)


@pytest.fixture
def start_process():
    processes = []

    def start(*flags):
        command = [sys.executable, "-m", "seed_rl", "--run_mode=actor", *flags]
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_rows_actions_and_rewards_are_aligned(make_learner):
    """Cases 3 and 101: also where the environment writes all observations into one array."""
    learner = make_learner()
    actor = Actor(learner, task=1)
    learner.wait_for_rows(40)
    learner.close(finished=True)
    actor.result()
    assert {row[0] for row in learner.rows} == {2, 3}
    for env_id in (2, 3):
        rows = [row for row in learner.rows if row[0] == env_id]
        last_action = None
        for index, (_, step_type, reward, raw_reward, observation, restarted, action) in enumerate(
            rows
        ):
            step = index % 4
            assert restarted == (index == 0)
            assert (
                step_type
                == [
                    StepType.FIRST,
                    StepType.MID,
                    StepType.MID,
                    StepType.TERMINATED,
                ][step]
            )
            # Each row was copied before the next environment wrote to the array.
            assert observation == ([step, last_action] if step else [0, 0])
            assert reward == raw_reward == (last_action if step else 0)
            last_action = action


def test_an_actor_comes_back_to_a_learner_that_was_restarted(make_learner, caplog):
    """Case 116: actors retry, and their environments start anew."""
    learner = make_learner()
    actor = Actor(learner)
    learner.wait_for_rows(10)
    learner.close(finished=False)
    time.sleep(0.3)
    again = make_learner(learner.address)
    again.wait_for_rows(10)
    again.close(finished=True)
    actor.result()
    assert [row[1] for row in again.rows[:2]] == [StepType.FIRST, StepType.FIRST]
    assert [row[5] for row in again.rows[:4]] == [True, True, False, False]
    assert "trying again for " in caplog.text


def test_an_actor_waits_for_a_learner_that_starts_later(make_learner):
    learner = make_learner()
    learner.close(finished=False)
    actor = Actor(learner)
    time.sleep(0.3)
    again = make_learner(learner.address)
    again.wait_for_rows(4)
    again.close(finished=True)
    actor.result()


def test_environments_are_made_again_where_the_learner_wants_others(make_learner):
    learner = make_learner()
    actor = Actor(learner)
    learner.wait_for_rows(4)
    learner.close(finished=False)
    again = make_learner(learner.address, description={"seed": 2, "env_batch_size": 4})
    again.wait_for_rows(8)
    again.close(finished=True)
    actor.result()
    assert {row[0] for row in again.rows} == {0, 1, 2, 3}


def test_actors_exit_0_when_training_is_over(make_learner, start_process):
    """Case 116."""
    learner = make_learner()
    process = start_process(f"--server_address={learner.address}")
    learner.wait_for_rows(10)
    learner.close(finished=True)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_actors_give_up_without_a_learner(start_process):
    """Case 116: with one clear line, and not at once."""
    start = time.monotonic()
    process = start_process("--server_address=localhost:1", "--reconnect_secs=1.5", "--task=3")
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert time.monotonic() - start >= 1.5
    (line,) = [line for line in errors.splitlines() if "gives up" in line]
    assert "actor 3 gives up: no connection to the learner at localhost:1" in line
    assert "Traceback" not in errors


def test_no_tensorflow_in_an_actor():
    """It would cost every actor seconds, half a gigabyte, and a GPU's memory."""
    code = """
import sys
import seed_rl.actor
from seed_rl.envs import registry
registry.load("catch")
registry.load("counter_env:Counter")
heavy = {"tensorflow", "tensorboard", "keras", "jax", "torch"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_environments_may_fork(make_learner, start_process):
    """Case 112: in __init__ and in step."""
    learner = make_learner(environment="counter_env:Forking")
    process = start_process(f"--server_address={learner.address}")
    learner.wait_for_rows(20)
    learner.close(finished=True)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors


def test_what_an_environment_raises_ends_the_actor(make_learner, start_process, caplog):
    """Case 64: with its traceback; the learner goes on."""
    learner = make_learner(environment="counter_env:Failing")
    process = start_process(f"--server_address={learner.address}", "--task=1")
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "Traceback" in errors
    assert "environment 2 failed in step(): OSError: the emulator is gone" in errors
    until = time.monotonic() + 10
    while len(learner.server.missing_env_ids()) < 4:
        assert time.monotonic() < until
    assert "with environments 2..3" in caplog.text


def test_a_second_actor_with_the_same_task_gives_up(make_learner, monkeypatch, caplog):
    """Case 6: naming the environments and their holder; the first one goes on."""
    monkeypatch.setattr(actor_module, "_RANGE_TAKEN_SECS", 0.5)
    learner = make_learner()
    first = Actor(learner, task=1)
    learner.wait_for_rows(4)
    second = Actor(learner, task=1)
    with pytest.raises(UserError) as error:
        second.result()
    assert "actor 1 gives up: environments 2..3 can't be had: 2..3 are held by actor " in str(
        error.value
    )
    assert "trying again for" in caplog.text
    learner.wait_for_rows(len(learner.rows) + 4)
    learner.close(finished=True)
    first.result()


def test_an_actor_takes_over_when_the_holder_goes(make_learner, start_process):
    """Case 47: a replacement may be started before its predecessor's death is noticed."""
    learner = make_learner()
    first = start_process(f"--server_address={learner.address}")
    learner.wait_for_rows(4)
    second = Actor(learner)
    time.sleep(0.2)
    first.kill()
    count = len(learner.rows)
    learner.wait_for_rows(count + 20)
    assert sum(row[5] for row in learner.rows) == 4
    learner.close(finished=True)
    second.result()


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ({"num_envs": 8}, {}, "num_envs: the actor has 8, the learner 4"),
        ({"env_batch_size": 3}, {}, "--env_batch_size: the actor has 3, the learner 2"),
        ({"task": 2}, {}, "asks for environments 4..5, the learner has 0..3"),
        ({"token": "wrong"}, {"token": "right"}, "the token is missing or wrong"),
        ({}, {"environment": "nonsense"}, "--environment=nonsense is unknown"),
        ({}, {"environment": "no_such_module:Env"}, "found no module no_such_module"),
        (
            {},
            {"description": {"environment_config": {"speed": 3}}},
            "the learner's options of counter_env:Counter are not this actor's",
        ),
        (
            {},
            {"observation": ArraySpec((3,), "uint8")},
            "saw observation uint8[2], wanted observation uint8[3]",
        ),
    ],
)
def test_what_does_not_match_ends_the_actor_at_once(make_learner, config, options, words):
    """Case 35: with both values."""
    actor = Actor(make_learner(**options), **config)
    with pytest.raises(UserError) as error:
        actor.result()
    assert words in str(error.value)


def test_addresses_are_checked(make_learner):
    with pytest.raises(UserError, match="has no port"):
        run_actor(ActorConfig(server_address="localhost"))


@pytest.mark.parametrize("name", ["task", "env_batch_size", "num_envs", "reconnect_secs"])
def test_flags_are_checked(name):
    with pytest.raises(ValueError, match=f"--{name} is -1, wanted at least 0"):
        ActorConfig(**{name: -1})


def test_the_log_tells_what_runs(make_learner, caplog):
    caplog.set_level(logging.INFO)
    learner = make_learner()
    actor = Actor(learner, task=1)
    learner.wait_for_rows(2)
    learner.close(finished=True)
    actor.result()
    assert "running environments 2..3 of counter_env:Counter for the learner at" in caplog.text
    assert "the training is over" in caplog.text
