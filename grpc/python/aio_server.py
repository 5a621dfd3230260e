"""The learner's end of the wire, in Python on grpcio's asyncio server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
import numpy as np

from seed_rl.grpc import addresses, admission, protocol
from seed_rl.grpc.admission import Admission, End, Refusal
from seed_rl.grpc.batching import Batcher, Stream
from seed_rl.grpc.codec import Layout, RowCheck
from seed_rl.grpc.interface import KEEPALIVE_SECS, Batch, ServerClosed, Stats
from seed_rl.grpc.leases import Lease

_GOODBYE_SECS = 0.05
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class _Call:
    """An open Act call."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.stream = Stream()
        self.task = asyncio.current_task()
        self.is_replaced = False


class AioServer:
    """The Server on grpcio. Its arguments are those of `server.make_server`."""

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
        self._address = addresses.parse(address)
        self._step_layout = step_layout
        self._action_layout = action_layout
        self._answer_sizes = [spec.num_bytes for _, spec in action_layout.fields]
        self._max_message_bytes = protocol.max_message_bytes(batch_size, step_layout.row_bytes)
        self._keepalive_secs = keepalive_secs
        self._admission = Admission(
            step_layout, action_layout, description, num_envs, batch_size, token, self._replace
        )
        self._batcher = Batcher(
            step_layout, batch_size, batch_timeout_secs, admission.WAITED_FOR_SECS
        )
        self._calls: dict[str, _Call] = {}  # by lease id; the server's thread only
        self._is_closing = False
        self._is_finished = False

        self._started = threading.Event()
        self._start_failure: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="grpc server", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._start_failure is not None:
            self._thread.join()
            raise self._start_failure

    @property
    def address(self) -> str:
        return str(self._address)

    @property
    def stats(self) -> Stats:
        return self._batcher.stats()

    def missing_env_ids(self) -> list[int]:
        return self._admission.missing_env_ids()

    def next_batch(self, timeout_secs: float) -> Batch | None:
        return self._batcher.take(timeout_secs)

    def reply(self, batch: Batch, actions: Sequence[np.ndarray]) -> None:
        columns = self._action_layout.first_rows(actions, batch.size)
        self._batcher.answered(batch)
        # A closing server ends the streams itself: nobody waits for these answers any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(
                self._answer, batch, [column.tobytes() for column in columns]
            )

    def close(self, finished: bool) -> None:
        self._batcher.fail(ServerClosed("the server was closed"))
        self._is_finished = finished
        with contextlib.suppress(RuntimeError):  # closed before
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    # All that follows runs in the server's thread.

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._start_failure = error
            self._batcher.fail(error)
        finally:
            self._started.set()
            self._loop.close()

    async def _serve(self) -> None:
        addresses.check_free(self._address)
        options = [
            *protocol.channel_options(self._keepalive_secs, self._max_message_bytes),
            ("grpc.compression_enabled_algorithms_bitset", 1),  # identity only
            ("grpc.so_reuseport", 0),
        ]
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            port = server.add_insecure_port(str(self._address))
        except RuntimeError as error:
            raise OSError(f"cannot serve at {self._address}: {error}") from error
        if not self._address.path:
            self._address = addresses.Address(self._address.host, port)
        await server.start()
        self._started.set()
        try:
            while not self._stop.is_set():
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), admission.TICK_SECS)
                self._watch_for_silence()
        finally:
            self._is_closing = True
            for call in self._calls.values():
                assert call.task is not None
                call.task.cancel()
            await server.stop(admission.CLOSE_SECS)

    def _handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            protocol.SERVICE,
            {
                "Join": grpc.unary_unary_rpc_method_handler(self._ending(self._join)),
                "Act": grpc.stream_stream_rpc_method_handler(self._ending(self._act)),
            },
        )

    def _ending(
        self, handler: Callable[[Any, Any], Awaitable[Any]]
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        """The handler with its exceptions made into statuses."""

        async def handle(request: Any, context: grpc.aio.ServicerContext) -> Any:
            try:
                return await handler(request, context)
            except Refusal as refusal:
                admission.log_refusal(_peer(context), refusal)
                await context.abort(_CODES[refusal.code], refusal.details)
            except (grpc.aio.BaseError, asyncio.InvalidStateError):
                raise  # the connection broke
            except Exception as error:
                self._batcher.fail(error)
                raise

        return handle

    async def _join(self, payload: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return self._admission.join(payload, _metadata(context, protocol.TOKEN_KEY), _peer(context))

    def _replace(self, lease: Lease) -> None:
        call = self._calls.get(lease.id)
        if call is not None:
            call.is_replaced = True
            assert call.task is not None
            call.task.cancel()
            self._batcher.end_stream(call.stream)

    async def _act(self, _: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        if self._is_closing:
            raise admission.closing()
        lease = self._admission.open(
            _metadata(context, protocol.LEASE_KEY), _metadata(context, protocol.TOKEN_KEY)
        )
        call = _Call(lease)
        self._calls[lease.id] = call
        self._batcher.open_stream(call.stream)
        end = End.LOST
        try:
            # Tells the actor that from now on its environments are waited for.
            await context.send_initial_metadata(((protocol.LEASE_KEY, lease.id),))
            await self._exchange(call, context)
            end = End.LEFT
        except asyncio.CancelledError:
            # Either the peer is gone, and nothing more can be told to it, or we end the call.
            if call.is_replaced:
                end = End.REPLACED
                raise admission.replaced() from None
            if not self._is_closing:
                raise
            end = End.DISMISSED
            if not self._is_finished:
                raise admission.closing() from None
            context.set_trailing_metadata(((protocol.FINISHED_KEY, "1"),))
        except Refusal:
            end = End.DISMISSED
            raise
        finally:
            self._batcher.end_stream(call.stream)
            del self._calls[lease.id]
            self._admission.end(lease, end)

    async def _exchange(self, call: _Call, context: grpc.aio.ServicerContext) -> None:
        stream, lease = call.stream, call.lease
        locate = self._step_layout.locate
        check = RowCheck(self._step_layout, lease.first_env_id, lease.num_envs).check
        add = self._batcher.add
        while True:
            message = await context.read()
            if message is grpc.aio.EOF:
                # A broken connection looks like a goodbye at first, then cancels this.
                await asyncio.sleep(_GOODBYE_SECS)
                return
            stream.answer = answer = self._loop.create_future()
            try:
                start, n = locate(message)
                add(stream, message, start, n, check(message, start, n))
            except ValueError as error:
                raise self._admission.bad_rows(lease, error) from error
            await context.write(await answer)

    def _answer(self, batch: Batch, blobs: list[bytes]) -> None:
        header = self._action_layout.header
        for stream, first, n in batch.origin:
            parts = [
                blob[first * size : (first + n) * size]
                for blob, size in zip(blobs, self._answer_sizes, strict=True)
            ]
            if not stream.answer.done():  # its call may have ended
                stream.answer.set_result(header(n) + b"".join(parts))

    def _watch_for_silence(self) -> None:
        self._batcher.forget_silent_streams([call.stream for call in self._calls.values()])
        now = time.monotonic()
        self._admission.tell_of_silent(
            (call.lease, now - call.stream.since if call.stream.batch is None else 0.0)
            for call in self._calls.values()
        )


def _peer(context: grpc.aio.ServicerContext) -> str:
    """Such as '127.0.0.1:43210' or '[::1]:43210'."""
    kind, _, place = urllib.parse.unquote(context.peer()).partition(":")
    return "a unix socket" if kind == "unix" else place


def _metadata(context: grpc.aio.ServicerContext, key: str) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == key:
            return value if isinstance(value, str) else value.decode(errors="replace")
    return ""
