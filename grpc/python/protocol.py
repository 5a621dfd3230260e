"""What both ends of the wire have to agree on beyond service.proto."""

from __future__ import annotations

import enum

PROTOCOL_VERSION = 1

SERVICE = "seed_rl.Seed"
JOIN = f"/{SERVICE}/Join"
ACT = f"/{SERVICE}/Act"

# Metadata.
LEASE_KEY = "seed-rl-lease"
TOKEN_KEY = "seed-rl-token"
FINISHED_KEY = "seed-rl-finished"

# With UNAVAILABLE, from a learner that ends. As in native/connection.cc.
SHUTTING_DOWN = "the learner is shutting down"

_LEAST_MAX_MESSAGE_BYTES = 4 << 20  # gRPC's own default, which also leaves room for any Join


class StatusCode(enum.IntEnum):
    """gRPC's status codes, by their numbers on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


def max_message_bytes(batch_size: int, row_bytes: int) -> int:
    """The largest message that a server accepts: a batch, what frames it, and a row for the words
    that say how many there are too many.
    """
    return max(_LEAST_MAX_MESSAGE_BYTES, (batch_size + 1) * row_bytes + 64)


def channel_options(keepalive_secs: float, max_message_bytes: int = -1) -> list[tuple[str, int]]:
    """gRPC's settings for either end: messages of any size where nothing is said, and pings.

    An end that doesn't answer within twice `keepalive_secs`, because it was stopped or unplugged,
    is taken for dead.
    """
    keepalive_ms = int(keepalive_secs * 1000)
    return [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms),
        # Of pings that gRPC sends for reasons of its own, which stand in for keepalive's: a minute
        # where it isn't said.
        ("grpc.http2.ping_timeout_ms", keepalive_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        # An idle stream is pinged as long as it is idle, and no ping is too many.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),
    ]
