"""Learners with real actors, over real sockets, in one process: what tests of it share."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from seed_rl.actor import ActorConfig, run_actor
from seed_rl.agents import registry as agents
from seed_rl.config import LearnerConfig
from seed_rl.envs import registry as environments
from seed_rl.experiment import Experiment
from seed_rl.learner import Learner

NUM_ACTORS, ENVS_PER_ACTOR = 2, 4


def make_learner(
    logdir: Any, environment: str = "catch", agent: str = "vtrace", **options: Any
) -> Learner:
    """A small and fast learner; options go to whichever config has them."""
    environment_class = environments.load(environment).Config
    agent_class = agents.load(agent).Config
    defaults = {
        "logdir": str(logdir),
        "server_address": f"unix:{logdir}.socket",
        "num_envs": NUM_ACTORS * ENVS_PER_ACTOR,
        "env_batch_size": ENVS_PER_ACTOR,
        "batch_size": 4,
        "unroll_length": 5,
        "log_secs": 1.0,
    }
    options = defaults | options

    def build(config_class: Any) -> Any:
        names = {field.name for field in dataclasses.fields(config_class)}
        return config_class(**{name: options[name] for name in names & options.keys()})

    known = {
        field.name
        for config_class in (LearnerConfig, environment_class, agent_class)
        for field in dataclasses.fields(config_class)
    }
    assert not options.keys() - known
    config = build(LearnerConfig)
    experiment = Experiment(
        environment, build(environment_class), agent, build(agent_class), config.seed
    )
    return Learner(experiment, config)


class Run:
    """A learner and actors, each in a thread."""

    def __init__(self, learner: Learner, tasks: Any) -> None:
        self.learner = learner
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self.actor_failures: list[BaseException] = []
        self._learner = threading.Thread(target=self._run_learner)
        self._actors = [threading.Thread(target=self._run_actor, args=(task,)) for task in tasks]
        for thread in (self._learner, *self._actors):
            thread.start()

    def _run_learner(self) -> None:
        try:
            self.learner.run(self.stop)
        except BaseException as error:
            self.failure = error

    def _run_actor(self, task: int) -> None:
        try:
            run_actor(ActorConfig(self.learner.address, task, reconnect_secs=2.0))
        except BaseException as error:
            self.actor_failures.append(error)

    def wait_for_updates(self, count: int, timeout: float = 60.0) -> None:
        wait_until(lambda: self.failure is not None or self.learner.num_updates >= count, timeout)
        if self.failure is not None:
            raise self.failure

    def join(self, timeout: float) -> None:
        """Waits for the learner, then for the actors, who give up 2 s after it."""
        self._learner.join(timeout)
        assert not self._learner.is_alive()
        for thread in self._actors:
            thread.join(20.0)
            assert not thread.is_alive()


def wait_until(condition: Any, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@contextlib.contextmanager
def running(learner: Learner, tasks: Any = range(NUM_ACTORS)) -> Iterator[Run]:
    run = Run(learner, tasks)
    try:
        yield run
    finally:
        run.stop.set()
        run.join(10.0)


def read_scalars(logdir: Any) -> dict[str, list[float]]:
    events = EventAccumulator(str(logdir), size_guidance={"tensors": 0})
    events.Reload()
    scalars: dict[str, list[float]] = {}
    for name in events.Tags()["tensors"]:
        scalars[name] = [float(make_ndarray(event.tensor_proto)) for event in events.Tensors(name)]
    return scalars
