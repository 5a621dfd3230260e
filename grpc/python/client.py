"""An actor's end of the wire, on either core."""

from __future__ import annotations

import os

from seed_rl.grpc import addresses
from seed_rl.grpc import core as cores
from seed_rl.grpc.interface import (
    KEEPALIVE_SECS,
    Client,
    Description,
    Disconnected,
    Finished,
    RangeTaken,
    Refused,
    ShuttingDown,
)

__all__ = [
    "Client",
    "Description",
    "Disconnected",
    "Finished",
    "RangeTaken",
    "Refused",
    "ShuttingDown",
    "make_client",
]


def make_client(
    address: str,
    token: str = "",
    name: str = "",
    keepalive_secs: float = KEEPALIVE_SECS,
    core: str = "auto",
) -> Client:
    """A client, which connects with its first call.

    Args:
      address: the learner's: host:port, [ipv6]:port or unix:path.
      token: the learner's secret, if it has one.
      name: of the actor, for the learner's messages; host:pid where empty.
      keepalive_secs: a learner that doesn't answer pings for twice this long is taken for dead.
      core: native, python, or auto. Only the Python core goes through HTTP proxies, so that auto
        means it where there is one on the way.

    Raises:
      ValueError: the address makes no sense, or the core isn't there.
    """
    parsed = addresses.parse(address)
    chosen = cores.choose(core)
    if chosen == "native" and (core == "native" or not proxy(parsed)):
        from seed_rl.grpc.native_client import NativeClient

        return NativeClient(address, token, name, keepalive_secs)
    from seed_rl.grpc.grpcio_client import GrpcioClient

    return GrpcioClient(address, token, name, keepalive_secs)


def proxy(address: addresses.Address) -> str:
    """The HTTP proxy on the way to an address, by the rules of gRPC; '' where there is none."""

    def first(*names: str) -> str:
        return next((value for name in names if (value := os.environ.get(name))), "")

    if address.is_local:
        return ""
    for ending in first("no_grpc_proxy", "no_proxy").split(","):
        if ending.strip() and address.host.lower().endswith(ending.strip().lower()):
            return ""
    return first("grpc_proxy", "https_proxy", "http_proxy")
