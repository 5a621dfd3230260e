"""What the learner sees of a server and an actor of a client, whichever core they run on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from seed_rl.grpc.codec import Layout

KEEPALIVE_SECS = 10.0  # twice this, and a silent peer is taken for dead
CONNECT_SECS = 10.0


class ServerClosed(Exception):
    """There are no more batches: the server was closed."""


class Refused(Exception):
    """The learner doesn't want this actor or what it sent, and says why."""


class RangeTaken(Refused):
    """Another actor holds the environments, perhaps a dead one that will soon be noticed."""


class Disconnected(Exception):
    """The learner can't be reached or ended the stream: join again later."""


class ShuttingDown(Disconnected):
    """The learner said goodbye, as it does when it is stopped: another may take its place."""


class Finished(Exception):
    """The training is over."""


class Stats(NamedTuple):
    """Totals since the start."""

    rows: int
    batches: int
    capacity: int  # rows of a full batch

    @property
    def fill(self) -> float:
        """Mean share of a batch that was filled; 0 before the first."""
        return self.rows / (self.batches * self.capacity) if self.batches else 0.0


@dataclasses.dataclass(eq=False, slots=True)
class Batch:
    """Rows that wait for actions. Every batch must be replied to.

    Its arrays stay valid until the thread that took it asks for the next one.
    """

    size: int  # rows
    columns: list[np.ndarray]  # the step layout's fields [capacity, ...]; the first `size` count
    restarted: np.ndarray  # bool [size]: the environment's first row under a new lease
    origin: Any  # the server's: where its answers go


@dataclasses.dataclass(frozen=True)
class Description:
    """What the learner wants to be run."""

    values: dict[str, Any]  # environment, environment_config, seed, num_envs, env_batch_size, specs
    step_layout: Layout
    action_layout: Layout


class Server(Protocol):
    """Serves actors from a thread of its own, and hands their rows to the learner in batches."""

    @property
    def address(self) -> str:
        """Where it serves, with the port that it got."""

    @property
    def stats(self) -> Stats: ...

    def missing_env_ids(self) -> list[int]:
        """Environments that no connected actor runs."""

    def next_batch(self, timeout_secs: float) -> Batch | None:
        """Waits for rows; None where there were none within `timeout_secs`.

        An environment has at most one row in a batch. Several threads may take batches.

        Raises:
          ServerClosed: the server was closed.
          Exception: what went wrong in the server's thread.
        """

    def reply(self, batch: Batch, actions: Sequence[np.ndarray]) -> None:
        """Sends the actions of a batch, columns `[size or capacity, ...]` of the action layout.

        Copies them, and doesn't wait for the network. Raises as `next_batch` does.
        """

    def close(self, finished: bool) -> None:
        """Ends all calls and the thread, within 2 s.

        Args:
          finished: the training is over, and actors end; otherwise they try to come back.
        """


class Client(Protocol):
    """One connection to the learner, with one stream. It belongs to one thread."""

    def describe(self, timeout_secs: float = CONNECT_SECS) -> Description:
        """Asks what to run. Raises Refused or Disconnected."""

    def join(
        self,
        first_env_id: int,
        num_envs: int,
        step_layout: Layout,
        action_layout: Layout,
        total_num_envs: int = 0,
        previous_lease: str = "",
        timeout_secs: float = CONNECT_SECS,
    ) -> str:
        """Leases a range of environments and opens the stream for them.

        Args:
          first_env_id: the first of `num_envs` ids.
          num_envs: number of environments of this actor.
          step_layout: of the environments that the actor has made.
          action_layout: likewise.
          total_num_envs: of all actors; compared with the learner's where it isn't 0.
          previous_lease: the lease of this actor that the new one replaces, if any.
          timeout_secs: for the learner to answer.

        Returns:
          The lease's id.

        Raises:
          Refused: the learner's words.
          Disconnected: the learner can't be reached.
        """

    def act(
        self, columns: Sequence[np.ndarray], timeout_secs: float = float("inf")
    ) -> list[np.ndarray]:
        """Sends rows and waits for their actions: `send` and `receive` in one."""

    def send(self, columns: Sequence[np.ndarray]) -> None:
        """Sends rows, the step layout's columns `[n, ...]`, without waiting for anything.

        The columns are copied and can be written to afterwards. Their answer has to be received
        before the next rows are sent.

        Raises:
          ValueError: the columns don't have the step layout; nothing was sent.
        """

    def receive(self, timeout_secs: float = float("inf")) -> list[np.ndarray]:
        """Waits for the actions of the rows sent last, which can be written to.

        A learner that is there but busy is waited for as long as `timeout_secs` allows.

        Returns:
          The action layout's columns `[n, ...]`.

        Raises:
          Refused: the learner found a mistake in the rows.
          Disconnected: the learner is gone, or took too long.
          Finished: the training is over.
        """

    def close(self) -> None:
        """Ends the stream and the connection. Closing twice does no harm."""
