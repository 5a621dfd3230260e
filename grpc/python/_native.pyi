# The native core, from grpc/native. Use it through seed_rl.grpc.server and seed_rl.grpc.client.

from collections.abc import Sequence

import numpy as np

def nghttp2_version() -> str: ...

# The server was closed, or has failed.
class Closed(Exception): ...

# The call ended. Its arguments: code, details, trailers.
class Status(Exception): ...

# There was no answer in time; the call is over.
class DeadlineExceeded(Exception): ...

class Server:
    def __init__(
        self,
        listeners: Sequence[int],
        step_sizes: Sequence[int],
        floats: Sequence[tuple[int, int]],
        action_sizes: Sequence[int],
        capacity: int,
        timeout_secs: float,
        keepalive_secs: float,
        max_message_bytes: int,
        waited_for_secs: float,
    ) -> None: ...
    # Buffer, rows, and how many of these are the first of their environment.
    def next_batch(self, timeout_secs: float) -> tuple[int, int, int] | None: ...

    # Bytes of the columns, and at last of which rows are the first of their environment.
    def memory(self, buffer: int) -> list[np.ndarray]: ...
    def reply(self, buffer: int, size: int, columns: Sequence[np.ndarray]) -> None: ...
    def next_event(
        self, timeout_secs: float
    ) -> (
        tuple[str, int, str]
        | tuple[str, int, bytes, bytes]
        | tuple[str, int, bytes, str, str]
        | tuple[str, int, str, str, str]
        | None
    ): ...
    def respond(self, call: int, payload: bytes) -> None: ...
    # Whether the call was still there.
    def accept(self, call: int, lease: str, first_env_id: int, num_envs: int) -> bool: ...
    def refuse(self, call: int, code: int, details: str) -> None: ...
    def silences(self) -> list[tuple[int, float]]: ...
    def stats(self) -> tuple[int, int]: ...
    def fail(self) -> None: ...
    def close(self, finished: bool, grace_secs: float) -> None: ...

class Client:
    def __init__(self, path: str | bytes, host: str, port: int, keepalive_secs: float) -> None: ...
    def unary(
        self,
        method: str,
        metadata: Sequence[tuple[str, str]],
        message: bytes,
        timeout_secs: float,
    ) -> bytes: ...
    def open(
        self,
        method: str,
        metadata: Sequence[tuple[str, str]],
        step_fields: Sequence[tuple[np.dtype, tuple[int, ...]]],
        action_fields: Sequence[tuple[np.dtype, tuple[int, ...]]],
        timeout_secs: float,
    ) -> dict[str, str]: ...
    # False where the columns can't be sent as they are: nothing was sent.
    def send(self, columns: Sequence[np.ndarray]) -> bool: ...
    def send_message(self, message: bytes, rows: int) -> None: ...
    # The columns, or the message where it isn't what was wanted.
    def receive(self, timeout_secs: float) -> list[np.ndarray] | bytes: ...

    # As `receive` after `send`; None where that is false.
    def act(
        self, columns: Sequence[np.ndarray], timeout_secs: float
    ) -> list[np.ndarray] | bytes | None: ...
    def close(self) -> None: ...
