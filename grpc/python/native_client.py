"""An actor's end of the wire on the native core, which knows arrays; what its statuses mean is told
here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import google.protobuf.message
import numpy as np

from seed_rl.grpc import _native, addresses, joining, protocol
from seed_rl.grpc.codec import Layout
from seed_rl.grpc.interface import CONNECT_SECS, KEEPALIVE_SECS, Description
from seed_rl.grpc.protocol import StatusCode
from seed_rl.grpc.service_pb2 import JoinRequest, JoinResponse


class NativeClient:
    """The Client on the native core. Its arguments are those of `client.make_client`."""

    def __init__(
        self,
        address: str,
        token: str = "",
        name: str = "",
        keepalive_secs: float = KEEPALIVE_SECS,
    ) -> None:
        self._address = addresses.parse(address)
        self._name = name or joining.default_name()
        self._metadata = [(protocol.TOKEN_KEY, token)] if token else []
        self._core = _native.Client(
            os.fsencode(self._address.path),
            self._address.host,
            self._address.port,
            keepalive_secs,
        )
        self._step_layout: Layout | None = None
        self._action_layout: Layout | None = None
        self._num_sent = 0  # rows whose answer was not received yet

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
        if self._step_layout is not None:
            raise RuntimeError("a client joins once")
        request = joining.request(
            first_env_id, num_envs, step_layout, action_layout, total_num_envs, previous_lease
        )
        lease = self._ask(request, timeout_secs).lease
        self._step_layout, self._action_layout = step_layout, action_layout
        try:
            headers = self._core.open(
                protocol.ACT,
                [*self._metadata, (protocol.LEASE_KEY, lease)],
                _fields(step_layout),
                _fields(action_layout),
                timeout_secs,
            )
            if protocol.LEASE_KEY not in headers:
                self._core.receive(timeout_secs)  # raises what ended the stream
        except (_native.Status, _native.DeadlineExceeded) as error:
            raise self._explain(error, timeout_secs) from None
        return lease

    def act(
        self, columns: Sequence[np.ndarray], timeout_secs: float = float("inf")
    ) -> list[np.ndarray]:
        self._check_can_send()
        try:
            answer = self._core.act(columns, timeout_secs)
        except (_native.Status, _native.DeadlineExceeded) as error:
            raise self._explain(error, timeout_secs) from None
        if answer is None:
            self._encode_and_send(columns)
            return self.receive(timeout_secs)
        return answer if isinstance(answer, list) else self._decode(answer, len(columns[0]))

    def send(self, columns: Sequence[np.ndarray]) -> None:
        self._check_can_send()
        if self._core.send(columns):
            self._num_sent = len(columns[0])
        else:
            self._encode_and_send(columns)

    def receive(self, timeout_secs: float = float("inf")) -> list[np.ndarray]:
        if not self._num_sent:
            raise RuntimeError("send before receiving")
        num_sent, self._num_sent = self._num_sent, 0
        try:
            answer = self._core.receive(timeout_secs)
        except (_native.Status, _native.DeadlineExceeded) as error:
            raise self._explain(error, timeout_secs) from None
        return answer if isinstance(answer, list) else self._decode(answer, num_sent)

    def close(self) -> None:
        self._core.close()

    def _ask(self, request: JoinRequest, timeout_secs: float) -> JoinResponse:
        request.protocol_version = protocol.PROTOCOL_VERSION
        request.name = self._name
        try:
            answer = self._core.unary(
                protocol.JOIN, self._metadata, request.SerializeToString(), timeout_secs
            )
            return JoinResponse.FromString(answer)
        except google.protobuf.message.DecodeError as error:
            raise joining.failure(self._address, StatusCode.INTERNAL, str(error)) from error
        except (_native.Status, _native.DeadlineExceeded) as error:
            raise self._explain(error, timeout_secs) from None

    def _check_can_send(self) -> None:
        if self._step_layout is None:
            raise RuntimeError("join before acting")
        if self._num_sent:
            raise RuntimeError("receive the answer before sending again")

    def _encode_and_send(self, columns: Sequence[np.ndarray]) -> None:
        """Sends what the core can't take as it is: columns with gaps, or none at all."""
        assert self._step_layout is not None
        message = self._step_layout.encode(columns)
        self._num_sent = len(columns[0])
        self._core.send_message(message, self._num_sent)

    def _decode(self, answer: bytes, num_sent: int) -> list[np.ndarray]:
        """The answer in a form that the core didn't expect."""
        assert self._action_layout is not None
        return joining.actions(self._action_layout, answer, num_sent)

    def _explain(self, error: Exception, timeout_secs: float) -> Exception:
        if isinstance(error, _native.DeadlineExceeded):
            return joining.overdue(self._address, timeout_secs)
        code, details, trailers = error.args
        if code == StatusCode.OK:
            return joining.end(self._address, trailers)
        return joining.failure(self._address, code, details)


def _fields(layout: Layout) -> list[tuple[np.dtype, tuple[int, ...]]]:
    return [(np.dtype(spec.dtype), spec.shape) for _, spec in layout.fields]
