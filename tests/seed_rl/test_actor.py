"""The actor against a real server, with environments of a user's module."""

import json
import logging
import os
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from seed_rl import actor as actor_module
from seed_rl.actor import ActorConfig, run_actor
from seed_rl.errors import UserError
from seed_rl.grpc.client import Disconnected, ShuttingDown
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
WANTED = "wanted uint8[2] in [0, 255], as observation_space says"
# Does what FAULT says, which only the process at fault is told.
FAULTY = """
class Faulty(Counter):
    def step(self, action):
        observation, reward, *ends = super().step(action)
        if self.steps == 2:
            match os.environ.get("FAULT"):
                case "shape":
                    observation = observation[:1]
                case "dtype":
                    observation = np.array([0.5, 1])
                case "nan":
                    reward = np.nan
                case "crash":
                    os.abort()
                case "hang":
                    __import__("time").sleep(600)
        return observation, reward, *ends
"""
SEEDED = """
class Seeded(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
    action_space = gymnasium.spaces.Discrete(100)

    def _observe(self, action):
        self.last = int(self.np_random.integers(200))
        return np.array([self.last, action], np.uint8)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(0), {}

    def step(self, action):
        observation = self._observe(action)
        return observation, float(self.last), self.last < 30, self.last > 170, {}
"""


def make_test_server(address, description, observation, **options):
    return make_server(
        address,
        step_layout(observation),
        action_layout(ArraySpec((), "int32", 0, 99)),
        json.dumps(
            {
                "environment": "counter_env:Counter",
                "environment_config": {},
                "seed": 1,
                "num_envs": 4,
                "env_batch_size": 2,
                **description,
            }
        ),
        num_envs=4,
        **options,
    )


class Learner:
    """A server whose rows are answered with the number of the row's environment's steps so far."""

    def __init__(self, address="localhost:0", environment="counter_env:Counter", **options):
        self.server = make_test_server(
            address,
            {"environment": environment, **options.pop("description", {})},
            options.pop("observation", ArraySpec((2,), "uint8")),
            **{"batch_size": 4, "batch_timeout_secs": 0.01, **options},
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
    (tmp_path / "counter_env.py").write_text(ENVIRONMENT + FORKING + FAILING + FAULTY + SEEDED)
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

    def start(*flags, **environment):
        command = [sys.executable, "-m", "seed_rl", "--run_mode=actor", *flags]
        processes.append(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **environment},
            )
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
    caplog.set_level(logging.INFO)
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


def lines_of(process):
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    return errors.splitlines()


def test_actors_are_told_of_a_stop_and_end_quietly(make_learner, start_process):
    """Case 116: nothing is wrong where a learner was stopped, and none came in its place."""
    learner = make_learner()
    process = start_process(f"--server_address={learner.address}", "--reconnect_secs=1.5")
    learner.wait_for_rows(10)
    start = time.monotonic()
    learner.close(finished=False)
    lines = lines_of(process)
    assert time.monotonic() - start >= 1.4
    assert all(line.startswith("I ") for line in lines), lines
    (told,) = [line for line in lines if "trying again" in line]
    assert re.search(r"the learner at .* is shutting down; trying again for [12] s", told)
    assert lines[-1].endswith("no other learner has come")


def test_actors_that_join_at_the_end_are_quiet_too(make_learner, monkeypatch, caplog):
    """A stream that is not open yet can't be told that the training is over."""
    caplog.set_level(logging.INFO)
    learner = make_learner()
    opened, closed = threading.Event(), threading.Event()
    make_groups = actor_module._Actor._make_groups

    def wait_for_the_end(*args):
        make_groups(*args)
        opened.set()
        assert closed.wait(30)

    monkeypatch.setattr(actor_module._Actor, "_make_groups", wait_for_the_end)
    actor = Actor(learner, reconnect_secs=0.5)
    assert opened.wait(30)
    monkeypatch.setattr(
        actor_module._Actor, "_connect", lambda _: FailingClient(ShuttingDown("it goes"))
    )
    closed.set()
    actor.result()
    learner.close(finished=True)
    assert "it goes; trying again for " in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_a_loss_is_a_warning(make_learner, caplog, monkeypatch):
    """Nobody said goodbye, though an earlier learner did, and was replaced."""
    caplog.set_level(logging.INFO)
    clients = []
    make_client = actor_module.make_client
    monkeypatch.setattr(
        actor_module,
        "make_client",
        lambda *args, **kw: clients.append(make_client(*args, **kw)) or clients[-1],
    )

    def told(level):
        return [
            record.message
            for record in caplog.records
            if record.levelno == level and record.name == "seed_rl.actor"
        ]

    learner = make_learner()
    actor = Actor(learner)
    learner.wait_for_rows(4)
    learner.close(finished=False)
    again = make_learner(learner.address)
    again.wait_for_rows(4)
    assert told(logging.WARNING) == []

    def lose(*_):
        raise Disconnected("the network is down")

    clients[-1].receive = lose
    again.wait_for_rows(len(again.rows) + 20)
    again.close(finished=True)
    actor.result()
    (warning,) = told(logging.WARNING)
    assert warning.startswith("the network is down; trying again for ")
    (goodbye,) = [line for line in told(logging.INFO) if "trying again" in line]
    assert "is shutting down; trying again for " in goodbye


class FailingClient:
    def __init__(self, error):
        self._error = error

    def describe(self, *_, **__):
        raise self._error

    join = describe

    def close(self):
        pass


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
    """Case 64: with its traceback; the learner goes on, and its log tells of it."""
    caplog.set_level(logging.INFO)
    learner = make_learner(environment="counter_env:Failing")
    process = start_process(f"--server_address={learner.address}", "--task=1")
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "Traceback" in errors
    assert "environment 2 failed in step(): OSError: the emulator is gone" in errors
    until = time.monotonic() + 10
    while not re.search(r"lost actor .* environments 2\.\.3|environments 2\.\.3 left", caplog.text):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert len(learner.server.missing_env_ids()) == 4


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("shape", f"environment 2: observation: {WANTED}, saw uint8[1] from 2 to 2"),
        ("dtype", f"environment 2: observation: {WANTED}, saw float64[2] from 0.5 to 1.0"),
        ("nan", "environment 2: reward holds nan, wanted finite numbers"),
        ("crash", "Fatal Python error: Aborted"),
        ("hang", ""),
    ],
)
def test_a_faulty_environment_ends_its_own_actor_only(
    make_learner, start_process, caplog, monkeypatch, fault, words
):
    """Cases 25, 61, 68 and 73: id, field, value seen and wanted; the other actor goes on."""
    monkeypatch.setattr("seed_rl.grpc.admission.WARN_OF_SILENCE_SECS", 1.0)
    caplog.set_level(logging.INFO)
    learner = make_learner(environment="counter_env:Faulty")
    good = Actor(learner)
    bad = start_process(
        f"--server_address={learner.address}", "--task=1", FAULT=fault, PYTHONFAULTHANDLER="1"
    )
    until = time.monotonic() + 40
    if fault == "hang":
        told = r"environments 2\.\.3 has sent nothing for . s; the others go on"
    else:
        _, errors = bad.communicate(timeout=40)
        assert bad.returncode not in (0, None)
        assert words in errors
        told = (
            r"lost actor .* environments 2\.\.3|environments 2\.\.3 left|environments 2\.\.3: env"
        )
    while not re.search(told, caplog.text):
        assert time.monotonic() < until, caplog.text
        time.sleep(0.01)
    learner.wait_for_rows(len(learner.rows) + 100)
    assert {row[0] for row in learner.rows[-50:]} == {0, 1}
    learner.close(finished=True)
    good.result()


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


@pytest.mark.parametrize(
    "name", ["task", "env_batch_size", "num_envs", "env_groups", "reconnect_secs"]
)
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


@pytest.mark.parametrize(
    ("env_ids", "num_groups", "groups"),
    [
        (range(4), 1, [range(4)]),
        (range(4, 8), 2, [range(4, 6), range(6, 8)]),
        (range(5), 2, [range(3), range(3, 5)]),
        (range(10, 21), 4, [range(10, 13), range(13, 16), range(16, 19), range(19, 21)]),
        (range(2), 2, [range(1), range(1, 2)]),
    ],
)
def test_split(env_ids, num_groups, groups):
    assert actor_module.split(env_ids, num_groups) == groups


@pytest.mark.parametrize("says", ["actor", "learner"])
def test_results_do_not_depend_on_groups(make_learner, says):
    """Each environment's rows are those it has in one group, for the same seed and actions."""

    def rows_of(num_groups):
        learner = make_learner(
            environment="counter_env:Seeded",
            description={
                "env_batch_size": 4,
                **({"env_groups": num_groups} if says == "learner" else {}),
            },
        )
        actor = Actor(learner, **({"env_groups": num_groups} if says == "actor" else {}))
        learner.wait_for_rows(200)
        learner.close(finished=True)
        actor.result()
        return [[row for row in learner.rows if row[0] == env_id][:30] for env_id in range(4)]

    one = rows_of(1)
    assert [len(rows) for rows in one] == [30] * 4
    assert len({str(row[1:]) for rows in one for row in rows[:1]}) == 4  # seeds differ
    for num_groups in (2, 3, 4):
        assert rows_of(num_groups) == one


class SlowLearner:
    """A server whose batches are one group each, and answered when the test wants it."""

    def __init__(self):
        self.server = make_test_server(
            "localhost:0",
            {"env_groups": 2},
            ArraySpec((2,), "uint8"),
            batch_size=1,
            batch_timeout_secs=60.0,
        )
        self.address = self.server.address

    def next_row(self):
        """The batch, and its row's environment and observation."""
        batch = self.server.next_batch(30.0)
        assert batch is not None
        assert batch.size == 1
        return batch, batch.columns[0][0], batch.columns[4][0].tolist()

    def reply(self, batch, action):
        self.server.reply(batch, [np.array([action], np.int32)])


def test_a_group_steps_while_the_others_wait():
    learner = SlowLearner()
    try:
        actor = Actor(learner)
        rows = [learner.next_row(), learner.next_row()]  # on two connections: in any order
        (first, env_id, observation), (second, other_id, other) = sorted(
            rows, key=lambda row: row[1]
        )
        assert (env_id, other_id, observation, other) == (0, 1, [0, 0], [0, 0])
        for step in range(1, 4):
            learner.reply(first, 10 + step)  # the second still waits for its answer
            first, env_id, observation = learner.next_row()
            assert (env_id, observation) == (0, [step, 10 + step])
            learner.reply(second, 20 + step)  # now the first one waits
            second, env_id, observation = learner.next_row()
            assert (env_id, observation) == (1, [step, 20 + step])
    finally:
        learner.server.close(finished=True)
    actor.result()


def test_all_groups_come_back_to_a_learner_that_was_restarted(make_learner, caplog):
    caplog.set_level(logging.INFO)
    learner = make_learner()
    actor = Actor(learner, task=1, env_groups=2)
    learner.wait_for_rows(10)
    learner.close(finished=False)
    time.sleep(0.3)
    again = make_learner(learner.address)
    again.wait_for_rows(20)
    again.close(finished=True)
    actor.result()
    for env_id in (2, 3):
        rows = [row for row in again.rows if row[0] == env_id]
        assert [row[1] for row in rows[:2]] == [StepType.FIRST, StepType.MID]
        assert [row[5] for row in rows] == [True] + [False] * (len(rows) - 1)
    assert "trying again for " in caplog.text


def test_all_groups_start_anew_where_one_lost_its_stream(make_learner, monkeypatch):
    """With new leases, also where the learner has not noticed that the old ones are dead."""
    clients = []
    make_client = actor_module.make_client

    def make_known_client(*args, **kwargs):
        clients.append(make_client(*args, **kwargs))
        return clients[-1]

    monkeypatch.setattr(actor_module, "make_client", make_known_client)
    learner = make_learner(description={"env_batch_size": 4, "env_groups": 2})
    actor = Actor(learner)
    learner.wait_for_rows(20)
    _, _, second = clients  # the one before them asked for the description
    lost = threading.Event()
    receive = second.receive

    def lose(*args):
        if not lost.is_set():
            lost.set()
            raise Disconnected("the network is down")
        return receive(*args)

    second.receive = lose
    assert lost.wait(30)
    count = len(learner.rows)
    learner.wait_for_rows(count + 40)
    learner.close(finished=True)
    actor.result()
    assert len(clients) == 6
    for env_id in range(4):
        rows = [row for row in learner.rows if row[0] == env_id]
        restarts = [index for index, row in enumerate(rows) if row[5]]
        assert len(restarts) == 2
        assert [rows[index][1] for index in restarts] == [StepType.FIRST, StepType.FIRST]


def test_groups_wait_for_one_whose_environments_are_held(make_learner):
    """The others give up their leases meanwhile, and get them again."""
    learner = make_learner(description={"env_batch_size": 4, "env_groups": 2})
    holder = actor_module.make_client(learner.address)
    try:
        description = holder.describe()
        holder.join(3, 1, description.step_layout, description.action_layout)
        actor = Actor(learner)
        time.sleep(0.5)
        assert actor.is_alive()
        assert not learner.rows
    finally:
        holder.close()
    learner.wait_for_rows(20)
    learner.close(finished=True)
    actor.result()
    assert {row[0] for row in learner.rows} == {0, 1, 2, 3}


def test_an_actor_ends_where_one_group_is_refused(make_learner):
    learner = make_learner(description={"env_batch_size": 6})
    with pytest.raises(UserError) as error:
        Actor(learner, env_groups=2).result()
    assert "actor 0 gives up: " in str(error.value)
    assert "asks for environments 3..5, the learner has 0..3" in str(error.value)
    until = time.monotonic() + 10
    while len(learner.server.missing_env_ids()) < 4:
        assert time.monotonic() < until


def test_there_are_no_groups_without_environments(make_learner):
    with pytest.raises(UserError, match="--env_groups is 3, wanted at most 2, the environments of"):
        Actor(make_learner(), env_groups=3).result()


def test_the_log_tells_of_groups_and_that_the_learner_has_others(make_learner, caplog):
    caplog.set_level(logging.INFO)
    learner = make_learner()
    actor = Actor(learner, env_groups=2)
    learner.wait_for_rows(2)
    learner.close(finished=True)
    actor.result()
    assert "running environments 0..1 of counter_env:Counter in 2 groups for the" in caplog.text
    assert "--env_groups: the actor has 2, the learner 1: " in caplog.text
