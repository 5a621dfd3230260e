"""The learner's end of the wire, in Python on grpcio's asyncio server."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import threading
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
import numpy as np

from seed_rl.grpc import addresses, protocol
from seed_rl.grpc.batching import Batch, Batcher, ServerClosed, Stats, Stream
from seed_rl.grpc.codec import Layout, RowCheck
from seed_rl.grpc.leases import Lease, Leases, range_text
from seed_rl.grpc.service_pb2 import JoinRequest, JoinResponse

__all__ = ["Batch", "Server", "ServerClosed", "Stats"]

_KEEPALIVE_SECS = 10.0  # twice this, and a silent peer is dropped
_TICK_SECS = 0.5
_WARN_OF_SILENCE_SECS = 30.0
_CLOSE_SECS = 1.0  # given to clients to read how their stream ended
_GOODBYE_SECS = 0.05
_MAX_DETAILS = 4000  # a status has to fit into HTTP/2 headers, of which 8 KiB are sure to pass

_log = logging.getLogger(__name__)
_Code = grpc.StatusCode
# Nobody's mistake: the actor comes again.
_PASSING = {_Code.ABORTED, _Code.NOT_FOUND, _Code.UNAVAILABLE}


class _Refused(Exception):
    """Ends a call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details if len(details) <= _MAX_DETAILS else details[:_MAX_DETAILS] + "..."


class _Call:
    """An open Act call."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.stream = Stream()
        self.task = asyncio.current_task()
        self.is_replaced = False
        self.is_silence_logged = False


class Server:
    """Serves actors from a thread of its own, and hands their rows to the learner in batches.

    Only one server, of any process, can have an address.

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

    Raises:
      ValueError: the address makes no sense.
      OSError: the address is in use, or can't be had.
    """

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
        keepalive_secs: float = _KEEPALIVE_SECS,
    ) -> None:
        self._address = addresses.parse(address)
        self._step_layout = step_layout
        self._action_layout = action_layout
        self._answer_sizes = [spec.num_bytes for _, spec in action_layout.fields]
        self._description = description
        self._num_envs = num_envs
        self._batch_size = batch_size
        self._token = (token or "").encode()
        self._keepalive_secs = keepalive_secs
        self._leases = Leases(num_envs)
        self._batcher = Batcher(step_layout, batch_size, batch_timeout_secs)
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
        """Where it serves, with the port that it got."""
        return str(self._address)

    @property
    def stats(self) -> Stats:
        return self._batcher.stats()

    def missing_env_ids(self) -> list[int]:
        """Environments that no connected actor runs."""
        return self._leases.missing_env_ids()

    def next_batch(self, timeout_secs: float) -> Batch | None:
        """Waits for rows; None where there were none within `timeout_secs`.

        An environment has at most one row in a batch. Several threads may take batches.

        Raises:
          ServerClosed: the server was closed.
          Exception: what went wrong in the server's thread.
        """
        return self._batcher.take(timeout_secs)

    def reply(self, batch: Batch, actions: Sequence[np.ndarray]) -> None:
        """Sends the actions of a batch, columns `[size or capacity, ...]` of the action layout.

        Copies them, and doesn't wait for the network. Raises as `next_batch` does.
        """
        columns = [np.asarray(column)[: batch.size] for column in actions]
        fields = self._action_layout.fields
        if len(columns) != len(fields):
            raise ValueError(f"saw {len(columns)} columns of actions, wanted {len(fields)}")
        for column, (name, spec) in zip(columns, fields, strict=True):
            if column.dtype != spec.dtype or column.shape != (batch.size, *spec.shape):
                raise ValueError(
                    f"{name}: saw {column.dtype}{list(column.shape)}, "
                    f"wanted {spec.dtype}{[batch.size, *spec.shape]}"
                )
        self._batcher.answered(batch)
        # A closing server ends the streams itself: nobody waits for these answers any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(
                self._answer, batch, [column.tobytes() for column in columns]
            )

    def close(self, finished: bool) -> None:
        """Ends all calls and the thread, within 2 s.

        Args:
          finished: the training is over, and actors end; otherwise they try to come back.
        """
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
        options = [*protocol.channel_options(self._keepalive_secs), ("grpc.so_reuseport", 0)]
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
                    await asyncio.wait_for(self._stop.wait(), _TICK_SECS)
                self._watch_for_silence()
        finally:
            self._is_closing = True
            for call in self._calls.values():
                assert call.task is not None
                call.task.cancel()
            await server.stop(_CLOSE_SECS)

    def _handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            protocol.SERVICE,
            {
                "Join": grpc.unary_unary_rpc_method_handler(
                    self._ending(self._join), JoinRequest.FromString, JoinResponse.SerializeToString
                ),
                "Act": grpc.stream_stream_rpc_method_handler(self._ending(self._act)),
            },
        )

    def _ending(
        self, handler: Callable[[Any, Any], Awaitable[Any]]
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        """The handler with its exceptions made into statuses."""

        async def handle(request: Any, context: grpc.aio.ServicerContext) -> Any:
            try:
                self._check_token(context)
                return await handler(request, context)
            except _Refused as refused:
                if refused.code not in _PASSING:
                    _log.warning("refused %s: %s", _peer(context), refused.details)
                await context.abort(refused.code, refused.details)
            except (grpc.aio.BaseError, asyncio.InvalidStateError):
                raise  # the connection broke
            except Exception as error:
                self._batcher.fail(error)
                raise

        return handle

    def _check_token(self, context: grpc.aio.ServicerContext) -> None:
        if self._token and not hmac.compare_digest(
            _metadata(context, protocol.TOKEN_KEY).encode(), self._token
        ):
            raise _Refused(
                _Code.UNAUTHENTICATED,
                "the token is missing or wrong: start the actor with the learner's --token",
            )

    async def _join(self, request: JoinRequest, context: grpc.aio.ServicerContext) -> JoinResponse:
        if request.protocol_version != protocol.PROTOCOL_VERSION:
            raise _Refused(
                _Code.FAILED_PRECONDITION,
                f"protocol version: the actor has {request.protocol_version}, the learner "
                f"{protocol.PROTOCOL_VERSION}: install the same seed_rl on both",
            )
        response = JoinResponse(
            description=self._description,
            step_layout=self._step_layout.to_json(),
            action_layout=self._action_layout.to_json(),
        )
        if request.num_envs:
            self._check_request(request)
            holder = f"{request.name or 'without a name'} at {_peer(context)}"
            response.lease = self._grant(request, holder).id
        return response

    def _check_request(self, request: JoinRequest) -> None:
        if request.total_num_envs and request.total_num_envs != self._num_envs:
            raise _Refused(
                _Code.FAILED_PRECONDITION,
                f"num_envs: the actor has {request.total_num_envs}, the learner {self._num_envs}: "
                "start both with the same --num_envs",
            )
        for name, text, wanted in (
            ("step_layout", request.step_layout, self._step_layout),
            ("action_layout", request.action_layout, self._action_layout),
        ):
            try:
                difference = Layout.from_json(text).difference(wanted)
            except ValueError as error:
                raise _Refused(_Code.INVALID_ARGUMENT, f"{name}: {error}") from error
            if difference:
                raise _Refused(
                    _Code.FAILED_PRECONDITION,
                    f"{name}: the actor's environments don't match the learner's: {difference}",
                )
        if request.num_envs > self._batch_size:
            raise _Refused(
                _Code.FAILED_PRECONDITION,
                f"an actor with {request.num_envs} environments doesn't fit into the learner's "
                f"batches of {self._batch_size}: wanted --env_batch_size <= --inference_batch_size",
            )
        if request.first_env_id + request.num_envs > self._num_envs:
            raise _Refused(
                _Code.OUT_OF_RANGE,
                f"the actor asks for environments "
                f"{range_text(request.first_env_id, request.num_envs)}, the learner has "
                f"{range_text(0, self._num_envs)}: wanted --task < num_envs / env_batch_size",
            )

    def _grant(self, request: JoinRequest, holder: str) -> Lease:
        while lease := self._leases.conflict(request.first_env_id, request.num_envs):
            if lease.id != request.previous_lease:
                raise _Refused(
                    _Code.ALREADY_EXISTS,
                    f"environments {range_text(request.first_env_id, request.num_envs)} can't be "
                    f"had: {lease.envs} are held by actor {lease.holder}: give each actor a --task "
                    "of its own, or stop that one",
                )
            self._replace(lease)
        return self._leases.grant(holder, request.first_env_id, request.num_envs)

    def _replace(self, lease: Lease) -> None:
        """Its holder has come back before the end of its old stream was noticed."""
        call = self._calls.get(lease.id)
        if call is not None:
            call.is_replaced = True
            assert call.task is not None
            call.task.cancel()
            self._batcher.end_stream(call.stream)
        self._leases.release(lease)

    async def _act(self, _: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        if self._is_closing:
            raise _Refused(_Code.UNAVAILABLE, "the learner is shutting down")
        lease = self._leases.open(_metadata(context, protocol.LEASE_KEY))
        if lease is None:
            raise _Refused(_Code.NOT_FOUND, "the lease is unknown or was given up: join again")
        call = _Call(lease)
        self._calls[lease.id] = call
        self._batcher.open_stream(call.stream)
        _log.info("%s joined", lease)
        end = "lost %s: its connection broke, or it stopped answering"
        try:
            # Tells the actor that from now on its environments are waited for.
            await context.send_initial_metadata(((protocol.LEASE_KEY, lease.id),))
            await self._exchange(call, context)
            end = "%s left"
        except asyncio.CancelledError:
            # Either the peer is gone, and nothing more can be told to it, or we end the call.
            if call.is_replaced:
                end = "%s came back on another connection"
                raise _Refused(_Code.ABORTED, "this lease was replaced by another") from None
            if not self._is_closing:
                raise
            end = "%s dismissed"
            if not self._is_finished:
                raise _Refused(_Code.UNAVAILABLE, "the learner is shutting down") from None
            context.set_trailing_metadata(((protocol.FINISHED_KEY, "1"),))
        except _Refused:
            end = "%s dismissed"
            raise
        finally:
            self._batcher.end_stream(call.stream)
            self._leases.release(lease)
            del self._calls[lease.id]
            _log.log(logging.WARNING if end.startswith("lost") else logging.INFO, end, lease)

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
                raise _Refused(_Code.INVALID_ARGUMENT, f"{lease}: {error}") from error
            await context.write(await answer)

    def _answer(self, batch: Batch, blobs: list[bytes]) -> None:
        header = self._action_layout.header
        for stream, first, n in batch.calls:
            parts = [
                blob[first * size : (first + n) * size]
                for blob, size in zip(blobs, self._answer_sizes, strict=True)
            ]
            if not stream.answer.done():  # its call may have ended
                stream.answer.set_result(header(n) + b"".join(parts))

    def _watch_for_silence(self) -> None:
        self._batcher.forget_silent_streams([call.stream for call in self._calls.values()])
        now = time.monotonic()
        for call in self._calls.values():
            silent_secs = now - call.stream.since if call.stream.batch is None else 0.0
            if silent_secs < _WARN_OF_SILENCE_SECS:
                call.is_silence_logged = False
            elif not call.is_silence_logged:
                call.is_silence_logged = True
                _log.warning(
                    "%s has sent nothing for %.0f s; the others go on", call.lease, silent_secs
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
