"""An actor's end of the wire, in Python on grpcio."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np

from seed_rl.grpc import addresses, protocol
from seed_rl.grpc.codec import Layout
from seed_rl.grpc.service_pb2 import JoinRequest, JoinResponse

_KEEPALIVE_SECS = 10.0  # twice this, and a silent learner is taken for dead
_CONNECT_SECS = 10.0
_Code = grpc.StatusCode
# Asking again would be answered the same.
_FATAL = {
    _Code.ALREADY_EXISTS,
    _Code.FAILED_PRECONDITION,
    _Code.INVALID_ARGUMENT,
    _Code.OUT_OF_RANGE,
    _Code.PERMISSION_DENIED,
    _Code.RESOURCE_EXHAUSTED,
    _Code.UNAUTHENTICATED,
    _Code.UNIMPLEMENTED,
}


class Refused(Exception):
    """The learner doesn't want this actor or what it sent, and says why."""


class RangeTaken(Refused):
    """Another actor holds the environments, perhaps a dead one that will soon be noticed."""


class Disconnected(Exception):
    """The learner can't be reached or ended the stream: join again later."""


class Finished(Exception):
    """The training is over."""


@dataclasses.dataclass(frozen=True)
class Description:
    """What the learner wants to be run."""

    values: dict[str, Any]  # environment, environment_config, seed, num_envs, env_batch_size, specs
    step_layout: Layout
    action_layout: Layout


class Client:
    """One connection to the learner, with one stream. It belongs to one thread.

    Args:
      address: the learner's: host:port, [ipv6]:port or unix:path.
      token: the learner's secret, if it has one.
      name: of the actor, for the learner's messages; host:pid where empty.
      keepalive_secs: a learner that doesn't answer pings for twice this long is taken for dead.

    Raises:
      ValueError: the address makes no sense.
    """

    def __init__(
        self,
        address: str,
        token: str = "",
        name: str = "",
        keepalive_secs: float = _KEEPALIVE_SECS,
    ) -> None:
        self._address = addresses.parse(address)
        self._name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._metadata = ((protocol.TOKEN_KEY, token),) if token else ()
        options: list[tuple[str, int]] = [
            *protocol.channel_options(keepalive_secs),
            # A connection of its own, that remembers nothing of earlier ones' failures.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if self._address.is_local:
            options.append(("grpc.enable_http_proxy", 0))
        self._channel = grpc.insecure_channel(str(self._address), options)
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call: Any = None
        self._step_layout: Layout | None = None
        self._action_layout: Layout | None = None
        self._num_sent = 0  # rows whose answer was not received yet
        self._closed = threading.Event()
        self._deadline = float("inf")  # of the answer that is waited for

    def describe(self, timeout_secs: float = _CONNECT_SECS) -> Description:
        """Asks what to run. Raises Refused or Disconnected."""
        response = self._ask(JoinRequest(), timeout_secs)
        return Description(
            json.loads(response.description),
            Layout.from_json(response.step_layout),
            Layout.from_json(response.action_layout),
        )

    def join(
        self,
        first_env_id: int,
        num_envs: int,
        step_layout: Layout,
        action_layout: Layout,
        total_num_envs: int = 0,
        previous_lease: str = "",
        timeout_secs: float = _CONNECT_SECS,
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
        if self._call is not None:
            raise RuntimeError("a client joins once")
        request = JoinRequest(
            first_env_id=first_env_id,
            num_envs=num_envs,
            total_num_envs=total_num_envs,
            step_layout=step_layout.to_json(),
            action_layout=action_layout.to_json(),
            previous_lease=previous_lease,
        )
        lease = self._ask(request, timeout_secs).lease
        self._step_layout, self._action_layout = step_layout, action_layout
        self._call = self._channel.stream_stream(protocol.ACT)(
            iter(self._requests.get, None),
            metadata=(*self._metadata, (protocol.LEASE_KEY, lease)),
        )
        threading.Thread(target=self._watch, name="grpc deadline", daemon=True).start()
        self._receive(self._await_opening, timeout_secs)
        return lease

    def act(
        self, columns: Sequence[np.ndarray], timeout_secs: float = float("inf")
    ) -> list[np.ndarray]:
        """Sends rows and waits for their actions: `send` and `receive` in one."""
        self.send(columns)
        return self.receive(timeout_secs)

    def send(self, columns: Sequence[np.ndarray]) -> None:
        """Sends rows, the step layout's columns `[n, ...]`, without waiting for anything.

        The columns are copied and can be written to afterwards. Their answer has to be received
        before the next rows are sent.

        Raises:
          ValueError: the columns don't have the step layout; nothing was sent.
        """
        if self._call is None or self._step_layout is None:
            raise RuntimeError("join before acting")
        if self._num_sent:
            raise RuntimeError("receive the answer before sending again")
        self._requests.put(self._step_layout.encode(columns))
        self._num_sent = len(columns[0])

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
        if not self._num_sent or self._action_layout is None:
            raise RuntimeError("send before receiving")
        num_sent, self._num_sent = self._num_sent, 0
        actions = self._action_layout.decode(self._receive(self._call.__next__, timeout_secs))
        if len(actions[0]) != num_sent:
            raise Disconnected(f"the learner sent {len(actions[0])} actions, wanted {num_sent}")
        return [column.copy() for column in actions]

    def close(self) -> None:
        """Ends the stream and the connection. Closing twice does no harm."""
        self._closed.set()
        self._requests.put(None)
        self._channel.close()

    def _ask(self, request: JoinRequest, timeout_secs: float) -> JoinResponse:
        request.protocol_version = protocol.PROTOCOL_VERSION
        request.name = self._name
        join = self._channel.unary_unary(
            protocol.JOIN, JoinRequest.SerializeToString, JoinResponse.FromString
        )
        try:
            response: JoinResponse = join(request, timeout=timeout_secs, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._explain(error) from None
        return response

    def _await_opening(self) -> None:
        headers = self._call.initial_metadata() or ()
        if not any(key == protocol.LEASE_KEY for key, _ in headers):
            next(self._call)  # raises what ended the stream

    def _receive(self, wait: Callable[[], Any], timeout_secs: float) -> Any:
        """What `wait` gets from the stream, or its end as an exception."""
        self._deadline = time.monotonic() + timeout_secs
        try:
            return wait()
        except StopIteration:
            raise self._explain_end() from None
        except grpc.RpcError as error:
            if error.code() == _Code.CANCELLED and time.monotonic() >= self._deadline:
                raise Disconnected(
                    f"the learner at {self._address} didn't answer within {timeout_secs:g} s"
                ) from None
            raise self._explain(error) from None
        finally:
            self._deadline = float("inf")

    def _explain(self, error: Any) -> Exception:
        code, details = error.code(), error.details()
        if code == _Code.ALREADY_EXISTS:
            return RangeTaken(details)
        if code in _FATAL:
            return Refused(details)
        return Disconnected(f"no connection to the learner at {self._address}: {details}")

    def _explain_end(self) -> Exception:
        if any(key == protocol.FINISHED_KEY for key, _ in self._call.trailing_metadata() or ()):
            return Finished("the training is over")
        return Disconnected(f"the learner at {self._address} ended the stream")

    def _watch(self) -> None:
        # grpcio's streams know no deadline of a single answer.
        while not self._closed.wait(0.2):
            if time.monotonic() >= self._deadline:
                self._call.cancel()
