"""The learner's end of the wire, on either core."""

from __future__ import annotations

from collections.abc import Callable

from seed_rl.grpc import core as cores
from seed_rl.grpc.codec import Layout
from seed_rl.grpc.interface import KEEPALIVE_SECS, Batch, Server, ServerClosed, Stats

__all__ = ["Batch", "Server", "ServerClosed", "Stats", "make_server"]


def make_server(
    address: str,
    step_layout: Layout,
    action_layout: Layout,
    description: str,
    num_envs: int,
    batch_size: int,
    batch_timeout_secs: float,
    token: str | None = None,
    keepalive_secs: float = KEEPALIVE_SECS,
    core: str = "auto",
) -> Server:
    """Starts a server. Only one, of any process, can have an address.

    Args:
      address: host:port, [ipv6]:port or unix:path; port 0 takes a free one.
      step_layout: fields of the rows that actors send, from `codec.step_layout`.
      action_layout: fields of the answers, from `codec.action_layout`.
      description: JSON object that tells actors what to run.
      num_envs: the number of environments of all actors together; their ids start at 0.
      batch_size: rows of a full batch.
      batch_timeout_secs: how long a batch waits for more rows after its first.
      token: secret that actors must show; empty or None asks for none.
      keepalive_secs: a peer that doesn't answer for twice this long is dropped.
      core: native, python, or auto.

    Raises:
      ValueError: the address makes no sense, or the core isn't there.
      OSError: the address is in use, or can't be had.
    """
    make: Callable[..., Server]
    if cores.choose(core) == "native":
        from seed_rl.grpc.native_server import NativeServer

        make = NativeServer
    else:
        from seed_rl.grpc.aio_server import AioServer

        make = AioServer
    return make(
        address,
        step_layout,
        action_layout,
        description,
        num_envs,
        batch_size,
        batch_timeout_secs,
        token,
        keepalive_secs,
    )
