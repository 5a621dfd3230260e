"""An actor: steps a batch of environments with the actions that the learner answers."""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from typing import Any, NoReturn

import numpy as np

from seed_rl import specs
from seed_rl.config import option
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
    make_client,
)
from seed_rl.grpc.codec import action_layout, step_layout

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
    reconnect_secs: float = option(
        120.0, "Give up after so many seconds in which the learner could not be reached."
    )
    token: str = option("", "The learner's secret, if it has one.")
    core: str = option("auto", cores.HELP, cores.CHOICES)

    def __post_init__(self) -> None:
        for name in ("task", "env_batch_size", "num_envs", "reconnect_secs"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"--{name} is {getattr(self, name)}, wanted at least 0")


def run_actor(config: ActorConfig) -> None:
    """Steps environments until the training is over.

    Loses and finds the learner again as often as needed. Every time the environments start anew
    with a lease of their own, so that the learner never mixes two runs of them.

    Raises:
      UserError: the learner refuses this actor, or wasn't there for `reconnect_secs`.
      Exception: what the environments raise.
    """
    _Actor(config).run()


class _Actor:
    def __init__(self, config: ActorConfig) -> None:
        self._config = config
        self._description: Description | None = None
        self._environments: Environments | None = None
        self._lease = ""
        # Of the first failure in a row, and the first refusal in a row.
        self._lost_since: float | None = None
        self._taken_since: float | None = None
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
                    self._wait(error, self._lost_since, self._config.reconnect_secs)
        finally:
            self._close_environments()

    def _run_until_disconnected(self) -> NoReturn:
        client = self._connect()
        try:
            description = client.describe()
        finally:
            # Environments may fork, and must not inherit a connection.
            client.close()
        self._lost_since = None
        environments = self._make_environments(description)
        client = self._connect()
        try:
            env_ids = self._join(client, environments, description)
            transition = environments.reset()
            while True:
                action = client.act(
                    [
                        env_ids,
                        transition.step_type,
                        transition.reward,
                        transition.raw_reward,
                        *specs.flatten(transition.observation),
                    ]
                )
                transition = environments.step(specs.unflatten(environments.specs.action, action))
        finally:
            client.close()

    def _connect(self) -> Client:
        with as_user_error(ValueError):  # the address or the core
            return make_client(
                self._config.server_address, self._config.token, core=self._config.core
            )

    def _join(
        self, client: Client, environments: Environments, description: Description
    ) -> np.ndarray:
        """Leases the environments. Returns their ids, int32 `[n]`."""
        num_envs = description.values["env_batch_size"]
        first_env_id = self._config.task * num_envs
        self._lease = client.join(
            first_env_id,
            num_envs,
            step_layout(environments.specs.observation),
            action_layout(environments.specs.action),
            total_num_envs=self._config.num_envs,
            previous_lease=self._lease,
        )
        self._taken_since = None
        self._delay_secs = _FIRST_DELAY_SECS
        self._complained_of = None
        _logger.info(
            "running environments %d..%d of %s for the learner at %s",
            first_env_id,
            first_env_id + num_envs - 1,
            description.values["environment"],
            self._config.server_address,
        )
        return np.arange(first_env_id, first_env_id + num_envs, dtype=np.int32)

    def _make_environments(self, description: Description) -> Environments:
        """The environments that the learner describes; those of before where they are the same."""
        if self._environments is not None and description == self._description:
            return self._environments
        self._close_environments()
        values: dict[str, Any] = description.values
        num_envs = values["env_batch_size"]
        if self._config.env_batch_size not in (0, num_envs):
            raise UserError(
                f"--env_batch_size: the actor has {self._config.env_batch_size}, the learner "
                f"{num_envs}: start both with the same, or the actor without"
            )
        with as_user_error(ValueError, ImportError):
            family = registry.load(values["environment"])
        try:
            environment_config = family.Config(**values["environment_config"])
        except TypeError as error:
            raise UserError(
                f"the learner's options of {values['environment']} are not this actor's: {error}: "
                "install the same seed_rl on both"
            ) from error
        first_env_id = self._config.task * num_envs
        self._environments = family.make(
            environment_config, range(first_env_id, first_env_id + num_envs), values["seed"]
        )
        self._description = description
        return self._environments

    def _close_environments(self) -> None:
        if self._environments is not None:
            self._environments.close()
            self._environments = None

    def _wait(self, error: Exception, since: float, give_up_secs: float) -> None:
        """Sleeps before the next attempt. Raises UserError where that would be too late."""
        left = since + min(give_up_secs, self._config.reconnect_secs) - time.monotonic()
        if left <= 0:
            raise self._user_error(error) from error
        # A learner that is not there yet is no news: actors are started together with it.
        is_early = self._description is None and time.monotonic() < since + _START_SECS
        # One line for each kind: how a learner is absent changes from one attempt to the next.
        if type(error) is not self._complained_of and not is_early:
            self._complained_of = type(error)
            _logger.warning("%s; trying again for %.0f s", error, left)
        # Not all actors of a learner at the same moment.
        time.sleep(min(left, self._delay_secs * random.uniform(0.5, 1.0)))
        self._delay_secs = min(2 * self._delay_secs, _MAX_DELAY_SECS)

    def _user_error(self, error: Exception) -> UserError:
        return UserError(f"actor {self._config.task} gives up: {error}")
