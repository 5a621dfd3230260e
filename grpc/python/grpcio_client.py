"""An actor's end of the wire, in Python on grpcio."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np

from seed_rl.grpc import addresses, joining, protocol
from seed_rl.grpc.codec import Layout
from seed_rl.grpc.interface import (
    CONNECT_SECS,
    KEEPALIVE_SECS,
    Description,
)
from seed_rl.grpc.protocol import StatusCode
from seed_rl.grpc.service_pb2 import JoinRequest, JoinResponse


class GrpcioClient:
    """The Client on grpcio. Its arguments are those of `client.make_client`."""

    def __init__(
        self,
        address: str,
        token: str = "",
        name: str = "",
        keepalive_secs: float = KEEPALIVE_SECS,
    ) -> None:
        self._address = addresses.parse(address)
        self._name = name or joining.default_name()
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

    def describe(self, timeout_secs: float = CONNECT_SECS) -> Description:
        return joining.description(self._ask(JoinRequest(), timeout_secs))

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
        if self._call is not None:
            raise RuntimeError("a client joins once")
        request = joining.request(
            first_env_id, num_envs, step_layout, action_layout, total_num_envs, previous_lease
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
        self.send(columns)
        return self.receive(timeout_secs)

    def send(self, columns: Sequence[np.ndarray]) -> None:
        if self._call is None or self._step_layout is None:
            raise RuntimeError("join before acting")
        if self._num_sent:
            raise RuntimeError("receive the answer before sending again")
        self._requests.put(self._step_layout.encode(columns))
        self._num_sent = len(columns[0])

    def receive(self, timeout_secs: float = float("inf")) -> list[np.ndarray]:
        if not self._num_sent or self._action_layout is None:
            raise RuntimeError("send before receiving")
        num_sent, self._num_sent = self._num_sent, 0
        answer = self._receive(self._call.__next__, timeout_secs)
        return joining.actions(self._action_layout, answer, num_sent)

    def close(self) -> None:
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
            if _code(error) == StatusCode.CANCELLED and time.monotonic() >= self._deadline:
                raise joining.overdue(self._address, timeout_secs) from None
            raise self._explain(error) from None
        finally:
            self._deadline = float("inf")

    def _explain(self, error: Any) -> Exception:
        return joining.failure(self._address, _code(error), error.details())

    def _explain_end(self) -> Exception:
        trailers = dict(self._call.trailing_metadata() or ())
        return joining.end(self._address, trailers)

    def _watch(self) -> None:
        # grpcio's streams know no deadline of a single answer.
        while not self._closed.wait(0.2):
            if time.monotonic() >= self._deadline:
                self._call.cancel()


def _code(error: Any) -> StatusCode:
    return StatusCode(error.code().value[0])
