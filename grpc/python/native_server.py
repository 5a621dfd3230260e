"""The learner's end of the wire on the native core: rows and answers never pass through here, who
may join and what is refused is decided here.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from seed_rl.grpc import _native, addresses, admission, protocol
from seed_rl.grpc.admission import Admission, End, Refusal
from seed_rl.grpc.codec import Layout, RowCheck
from seed_rl.grpc.interface import KEEPALIVE_SECS, Batch, ServerClosed, Stats
from seed_rl.grpc.leases import Lease

_POLL_SECS = 0.1  # after a close, the thread that decides needs at most as long to see it
_ENDS = {
    "left": End.LEFT,
    "lost": End.LOST,
    "refused": End.DISMISSED,
    "dismissed": End.DISMISSED,
}


class _Call:
    """An accepted Act call."""

    def __init__(self, lease: Lease, peer: str) -> None:
        self.lease = lease
        self.peer = peer
        self.is_replaced = False


class NativeServer:
    """The Server on the native core. Its arguments are those of `server.make_server`."""

    def __init__(
        self,
        address: str,
        step_layout: Layout,
        action_layout: Layout,
        description: str,
        num_envs: int,
        batch_size: int,
        batch_timeout_secs: float,
        token: str | None = None,
        keepalive_secs: float = KEEPALIVE_SECS,
    ) -> None:
        self._step_layout = step_layout
        self._action_layout = action_layout
        self._capacity = batch_size
        self._admission = Admission(
            step_layout, action_layout, description, num_envs, batch_size, token, self._replace
        )
        # The control thread's only.
        self._calls: dict[int, _Call] = {}
        self._numbers: dict[Lease, int] = {}
        # The columns of each of the core's buffers, and which rows are the first of a run.
        self._arrays: dict[int, tuple[list[np.ndarray], np.ndarray]] = {}
        self._failure: BaseException | None = None
        self._failure_lock = threading.Lock()

        self._listeners = addresses.Listeners(addresses.parse(address))
        self._core = _native.Server(
            self._listeners.detach(),
            [spec.num_bytes for _, spec in step_layout.fields],
            [
                (field, dtype.itemsize)
                for field, dtype in enumerate(step_layout.dtypes)
                if dtype.kind == "f"
            ],
            [spec.num_bytes for _, spec in action_layout.fields],
            batch_size,
            batch_timeout_secs,
            keepalive_secs,
            protocol.max_message_bytes(batch_size, step_layout.row_bytes),
            admission.WAITED_FOR_SECS,
        )
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._control, name="grpc server", daemon=True)
        self._thread.start()
        # No thread may be in the core when the interpreter goes away.
        atexit.register(self.close, finished=False)

    @property
    def address(self) -> str:
        return str(self._listeners.address)

    @property
    def stats(self) -> Stats:
        rows, batches = self._core.stats()
        return Stats(rows, batches, self._capacity)

    def missing_env_ids(self) -> list[int]:
        return self._admission.missing_env_ids()

    def next_batch(self, timeout_secs: float) -> Batch | None:
        try:
            taken = self._core.next_batch(timeout_secs)
        except _native.Closed:
            raise self._why_closed() from None
        if taken is None:
            return None
        buffer, size, _ = taken
        arrays = self._arrays.get(buffer)
        if arrays is None:
            arrays = self._arrays[buffer] = self._view(buffer)
        columns, restarted = arrays
        return Batch(size, columns, restarted[:size], buffer)

    def reply(self, batch: Batch, actions: Sequence[np.ndarray]) -> None:
        columns = self._action_layout.first_rows(actions, batch.size)
        if self._failure is not None:
            raise self._failure
        self._core.reply(
            batch.origin,
            batch.size,
            [c if c.flags.c_contiguous else np.ascontiguousarray(c) for c in columns],
        )

    def close(self, finished: bool) -> None:
        self._fail(ServerClosed("the server was closed"))
        self._core.close(finished, admission.CLOSE_SECS)
        self._is_closed.set()
        self._thread.join()
        self._listeners.remove()
        atexit.unregister(self.close)

    def _view(self, buffer: int) -> tuple[list[np.ndarray], np.ndarray]:
        *memory, restarted = self._core.memory(buffer)
        columns = [
            np.frombuffer(data, dtype, self._capacity * (spec.num_bytes // dtype.itemsize)).reshape(
                self._capacity, *spec.shape
            )
            for data, dtype, (_, spec) in zip(
                memory, self._step_layout.dtypes, self._step_layout.fields, strict=True
            )
        ]
        return columns, np.frombuffer(restarted, bool, self._capacity)

    def _fail(self, failure: BaseException) -> None:
        """From now on all calls of the learner raise `failure`."""
        with self._failure_lock:
            self._failure = self._failure or failure
        self._core.fail()

    def _why_closed(self) -> BaseException:
        return self._failure or RuntimeError("the native core has stopped")

    # All that follows runs in a thread of its own.

    def _control(self) -> None:
        try:
            next_look = time.monotonic() + admission.TICK_SECS
            while True:
                is_last_round = self._is_closed.is_set()
                while event := self._core.next_event(0.0 if is_last_round else _POLL_SECS):
                    self._handle(*event)
                if is_last_round:
                    return
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + admission.TICK_SECS
                    self._look_after_silent()
        except BaseException as error:
            self._fail(error)
            # Without decisions, actors had better go.
            self._core.close(False, admission.CLOSE_SECS)

    def _handle(self, kind: str, number: int, *details: Any) -> None:
        if kind == "end":
            (reason,) = details
            self._end(number, reason)
        elif kind == "bad":
            self._refuse_rows(number, *details)
        else:
            *_, peer = details
            try:
                if kind == "join":
                    self._core.respond(number, self._admission.join(*details))
                else:
                    self._accept(number, *details)
            except Refusal as refusal:
                self._refuse(number, peer, refusal)

    def _accept(self, number: int, lease_id: str, token: str, peer: str) -> None:
        lease = self._admission.open(lease_id, token)
        if not self._core.accept(number, lease.id, lease.first_env_id, lease.num_envs):
            self._admission.end(lease, End.LOST)  # gone while we decided
            return
        self._calls[number] = _Call(lease, peer)
        self._numbers[lease] = number

    def _end(self, number: int, reason: str) -> None:
        call = self._calls.pop(number)
        del self._numbers[call.lease]
        self._admission.end(call.lease, End.REPLACED if call.is_replaced else _ENDS[reason])

    def _replace(self, lease: Lease) -> None:
        number = self._numbers.get(lease)
        if number is not None:
            self._calls[number].is_replaced = True
            replaced = admission.replaced()
            self._core.refuse(number, replaced.code, replaced.details)

    def _refuse_rows(self, number: int, message: bytes, started: bytes) -> None:
        call = self._calls[number]
        lease = call.lease
        check = RowCheck(
            self._step_layout, lease.first_env_id, lease.num_envs, np.frombuffer(started, bool)
        )
        self._refuse(number, call.peer, self._admission.explain(lease, message, check))

    def _refuse(self, number: int, peer: str, refusal: Refusal) -> None:
        admission.log_refusal(peer, refusal)
        self._core.refuse(number, refusal.code, refusal.details)

    def _look_after_silent(self) -> None:
        self._admission.tell_of_silent(
            (call.lease, secs)
            for number, secs in self._core.silences()
            if (call := self._calls.get(number)) is not None
        )
