"""What both ends of the wire have to agree on beyond service.proto."""

from __future__ import annotations

PROTOCOL_VERSION = 1

SERVICE = "seed_rl.Seed"
JOIN = f"/{SERVICE}/Join"
ACT = f"/{SERVICE}/Act"

# Metadata.
LEASE_KEY = "seed-rl-lease"
TOKEN_KEY = "seed-rl-token"
FINISHED_KEY = "seed-rl-finished"


def channel_options(keepalive_secs: float) -> list[tuple[str, int]]:
    """gRPC's settings for either end: messages of any size, and pings.

    An end that doesn't answer within twice `keepalive_secs`, because it was stopped or unplugged,
    is taken for dead.
    """
    keepalive_ms = int(keepalive_secs * 1000)
    return [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
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
