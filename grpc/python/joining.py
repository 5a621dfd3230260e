"""An actor's side of Join, and what the learner's statuses mean to it: the same on both cores."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping

import numpy as np

from seed_rl.grpc import protocol
from seed_rl.grpc.addresses import Address
from seed_rl.grpc.codec import Layout
from seed_rl.grpc.interface import (
    Description,
    Disconnected,
    Finished,
    RangeTaken,
    Refused,
    ShuttingDown,
)
from seed_rl.grpc.protocol import StatusCode
from seed_rl.grpc.service_pb2 import JoinRequest, JoinResponse

# Asking again would be answered the same.
_FATAL = {
    StatusCode.FAILED_PRECONDITION,
    StatusCode.INVALID_ARGUMENT,
    StatusCode.OUT_OF_RANGE,
    StatusCode.PERMISSION_DENIED,
    StatusCode.RESOURCE_EXHAUSTED,
    StatusCode.UNAUTHENTICATED,
    StatusCode.UNIMPLEMENTED,
}


def default_name() -> str:
    """Of an actor, for the learner's messages."""
    return f"{socket.gethostname()}:{os.getpid()}"


def request(
    first_env_id: int,
    num_envs: int,
    step_layout: Layout,
    action_layout: Layout,
    total_num_envs: int,
    previous_lease: str,
) -> JoinRequest:
    """All that `Client.join` asks for; version and name are still to be filled in."""
    return JoinRequest(
        first_env_id=first_env_id,
        num_envs=num_envs,
        total_num_envs=total_num_envs,
        step_layout=step_layout.to_json(),
        action_layout=action_layout.to_json(),
        previous_lease=previous_lease,
    )


def description(response: JoinResponse) -> Description:
    return Description(
        json.loads(response.description),
        Layout.from_json(response.step_layout),
        Layout.from_json(response.action_layout),
    )


def failure(address: Address, code: int, details: str) -> Exception:
    """What a status other than OK means."""
    if code == StatusCode.ALREADY_EXISTS:
        return RangeTaken(details)
    if code in _FATAL:
        return Refused(details)
    if code == StatusCode.UNAVAILABLE and details == protocol.SHUTTING_DOWN:
        return ShuttingDown(f"the learner at {address} is shutting down")
    return Disconnected(f"no connection to the learner at {address}: {details}")


def end(address: Address, trailers: Mapping[str, str]) -> Exception:
    """What it means that a stream ended with OK."""
    if protocol.FINISHED_KEY in trailers:
        return Finished("the training is over")
    return Disconnected(f"the learner at {address} ended the stream")


def overdue(address: Address, timeout_secs: float) -> Disconnected:
    return Disconnected(f"the learner at {address} didn't answer within {timeout_secs:g} s")


def actions(layout: Layout, message: bytes, num_sent: int) -> list[np.ndarray]:
    """The columns `[num_sent, ...]` of an answer, which can be written to.

    Raises Disconnected where they are not those: another try may meet a better learner.
    """
    try:
        columns = layout.decode(message)
    except ValueError as error:
        raise Disconnected(f"the learner sent no actions: {error}") from error
    if len(columns[0]) != num_sent:
        raise Disconnected(f"the learner sent {len(columns[0])} actions, wanted {num_sent}")
    return [column.copy() for column in columns]
