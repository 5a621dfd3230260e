"""An actor: steps a batch of environments with the actions that the learner answers."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import random
import time
from typing import Any, NoReturn

import numpy as np

from seed_rl import specs
from seed_rl.config import option, require_groups
from seed_rl.envs import registry
from seed_rl.envs.environment import Environments
from seed_rl.errors import UserError, as_user_error
from seed_rl.grpc import core as cores
from seed_rl.grpc.client import (
    Client,
    Description,
    Disconnected,
    Finished,
    RangeTaken,
    Refused,
    ShuttingDown,
    make_client,
)
from seed_rl.grpc.codec import action_layout, step_layout
from seed_rl.types import Transition

_FIRST_DELAY_SECS = 0.5  # doubled with each failure in a row, up to:
_MAX_DELAY_SECS = 5.0
# The learner notices within less that an actor has died whose machine can't tell.
_RANGE_TAKEN_SECS = 30.0
_START_SECS = 15.0  # a learner needs up to about as long to start

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ActorConfig:
    """Actor: where the learner is and which environments to run; the learner tells the rest."""

    server_address: str = option(
        "localhost:8686", "Where the learner is: host:port, [ipv6]:port or unix:path."
    )
    task: int = option(
        0, "Number of this actor: it runs environments task * env_batch_size and following."
    )
    env_batch_size: int = option(
        0, "Environments of one actor; compared with the learner's, 0 = whatever that says."
    )
    num_envs: int = option(
        0, "Environments of all actors together; compared with the learner's, 0 = whatever."
    )
    env_groups: int = option(
        0,
        "Groups of this actor's environments: one steps while the others wait for their actions; "
        "0 = as many as the learner says.",
    )
    reconnect_secs: float = option(
        120.0, "Give up after so many seconds in which the learner could not be reached."
    )
    token: str = option("", "The learner's secret, if it has one.")
    core: str = option("auto", cores.HELP, cores.CHOICES)

    def __post_init__(self) -> None:
        for name in ("task", "env_batch_size", "num_envs", "env_groups", "reconnect_secs"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"--{name} is {getattr(self, name)}, wanted at least 0")


def run_actor(config: ActorConfig) -> None:
    """Steps environments until the training is over.

    Also ends where a learner that said it shuts down has had no successor for `reconnect_secs`.
    Loses and finds the learner again as often as needed. Every time the environments start anew
    with a lease of their own, so that the learner never mixes two runs of them.

    Raises:
      UserError: the learner refuses this actor, or wasn't there for `reconnect_secs`.
      Exception: what the environments raise.
    """
    _Actor(config).run()


def split(env_ids: range, num_groups: int) -> list[range]:
    """Cuts ids into groups of nearly the same size, the larger ones first."""
    size, rest = divmod(len(env_ids), num_groups)
    bounds = [group * size + min(group, rest) for group in range(num_groups + 1)]
    return [env_ids[first:last] for first, last in itertools.pairwise(bounds)]


class _Group:
    """Environments that step together, and their stream."""

    def __init__(self, env_ids: range, environments: Environments) -> None:
        self.environments = environments
        self._env_ids = env_ids
        self._column = np.array(env_ids, np.int32)
        self._lease = ""
        self._client: Client | None = None

    def join(self, client: Client, total_num_envs: int) -> None:
        """Leases the environments; once more where they had a lease."""
        environment = self.environments.specs
        self._lease = client.join(
            self._env_ids.start,
            len(self._env_ids),
            step_layout(environment.observation),
            action_layout(environment.action),
            total_num_envs=total_num_envs,
            previous_lease=self._lease,
        )
        self._client = client

    def start(self) -> None:
        self._send(self.environments.reset())

    def step(self) -> None:
        assert self._client is not None
        action = specs.unflatten(self.environments.specs.action, self._client.receive())
        self._send(self.environments.step(action))

    def _send(self, transition: Transition) -> None:
        assert self._client is not None
        self._client.send(
            [
                self._column,
                transition.step_type,
                transition.reward,
                transition.raw_reward,
                *specs.flatten(transition.observation),
            ]
        )


class _Actor:
    def __init__(self, config: ActorConfig) -> None:
        self._config = config
        self._description: Description | None = None
        self._groups: list[_Group] = []
        # Of the first failure in a row, and the first refusal in a row.
        self._lost_since: float | None = None
        self._taken_since: float | None = None
        self._was_told = False  # by the learner, that it goes: no news, and no failure
        self._delay_secs = _FIRST_DELAY_SECS
        self._complained_of: type[Exception] | None = None

    def run(self) -> None:
        try:
            while True:
                try:
                    self._run_until_disconnected()
                except Finished:
                    _logger.info("the training is over")
                    return
                except RangeTaken as error:
                    self._taken_since = self._taken_since or time.monotonic()
                    self._wait(error, self._taken_since, _RANGE_TAKEN_SECS)
                except Refused as error:
                    raise self._user_error(error) from error
                except Disconnected as error:
                    self._lost_since = self._lost_since or time.monotonic()
                    self._was_told |= isinstance(error, ShuttingDown)
                    if self._was_told and self._left(self._lost_since) <= 0:
                        _logger.info("no other learner has come")
                        return
                    self._wait(error, self._lost_since)
        finally:
            self._close_environments()

    def _run_until_disconnected(self) -> NoReturn:
        client = self._connect()
        try:
            description = client.describe()
        finally:
            # Environments may fork, and must not inherit a connection.
            client.close()
        self._lost_since, self._was_told = None, False
        self._make_groups(description)
        with contextlib.ExitStack() as clients:
            for group in self._groups:
                group.join(
                    clients.enter_context(contextlib.closing(self._connect())),
                    self._config.num_envs,
                )
            self._has_joined(description)
            for group in self._groups:
                group.start()
            # All groups but the one that steps here have their rows under way.
            while True:
                for group in self._groups:
                    group.step()

    def _connect(self) -> Client:
        with as_user_error(ValueError):  # the address or the core
            return make_client(
                self._config.server_address, self._config.token, core=self._config.core
            )

    def _has_joined(self, description: Description) -> None:
        self._taken_since = None
        self._delay_secs = _FIRST_DELAY_SECS
        self._complained_of = None
        env_ids = self._env_ids(description)
        num_groups = len(self._groups)
        _logger.info(
            "running environments %d..%d of %s%s for the learner at %s",
            env_ids[0],
            env_ids[-1],
            description.values["environment"],
            f" in {num_groups} groups" if num_groups > 1 else "",
            self._config.server_address,
        )

    def _env_ids(self, description: Description) -> range:
        num_envs = description.values["env_batch_size"]
        return range(self._config.task * num_envs, (self._config.task + 1) * num_envs)

    def _make_groups(self, description: Description) -> None:
        """The environments that the learner describes; those of before where they are the same."""
        if self._groups and description == self._description:
            return
        self._close_environments()
        values: dict[str, Any] = description.values
        num_envs = values["env_batch_size"]
        if self._config.env_batch_size not in (0, num_envs):
            raise UserError(
                f"--env_batch_size: the actor has {self._config.env_batch_size}, the learner "
                f"{num_envs}: start both with the same, or the actor without"
            )
        num_groups = self._num_groups(values)
        with as_user_error(ValueError, ImportError):
            family = registry.load(values["environment"])
        try:
            with as_user_error(ValueError):  # such as what is not installed here
                environment_config = family.Config(**values["environment_config"])
        except TypeError as error:
            raise UserError(
                f"the learner's options of {values['environment']} are not this actor's: {error}: "
                "install the same seed_rl on both"
            ) from error
        for env_ids in split(self._env_ids(description), num_groups):
            environments = family.make(environment_config, env_ids, values["seed"])
            self._groups.append(_Group(env_ids, environments))
        self._description = description

    def _num_groups(self, values: dict[str, Any]) -> int:
        wanted = values.get("env_groups", 1)
        num_groups = self._config.env_groups or wanted
        with as_user_error(ValueError):
            require_groups(num_groups, values["env_batch_size"])
        if num_groups != wanted:
            _logger.warning(
                "--env_groups: the actor has %d, the learner %d: its batches fit other groups, so "
                "that time is lost; start both with the same, or the actor without",
                num_groups,
                wanted,
            )
        return int(num_groups)

    def _close_environments(self) -> None:
        while self._groups:
            self._groups.pop().environments.close()

    def _left(self, since: float, give_up_secs: float = math.inf) -> float:
        """Seconds in which another attempt may be made."""
        return since + min(give_up_secs, self._config.reconnect_secs) - time.monotonic()

    def _wait(self, error: Exception, since: float, give_up_secs: float = math.inf) -> None:
        """Sleeps before the next attempt. Raises UserError where that would be too late."""
        left = self._left(since, give_up_secs)
        if left <= 0:
            raise self._user_error(error) from error
        # A learner that is not there yet is no news: actors are started together with it.
        is_early = self._description is None and time.monotonic() < since + _START_SECS
        # One line for each kind: how a learner is absent changes from one attempt to the next.
        kind = ShuttingDown if self._was_told else type(error)
        if kind is not self._complained_of and not is_early:
            self._complained_of = kind
            level = logging.INFO if self._was_told else logging.WARNING
            _logger.log(level, "%s; trying again for %.0f s", error, left)
        # Not all actors of a learner at the same moment.
        time.sleep(min(left, self._delay_secs * random.uniform(0.5, 1.0)))
        self._delay_secs = min(2 * self._delay_secs, _MAX_DELAY_SECS)

    def _user_error(self, error: Exception) -> UserError:
        return UserError(f"actor {self._config.task} gives up: {error}")
