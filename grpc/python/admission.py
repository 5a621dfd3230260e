"""Who may join, and what is said to actors and logged of them: the same on both servers' cores."""

from __future__ import annotations

import enum
import hmac
import logging
import urllib.parse
from collections.abc import Callable, Iterable

from google.protobuf.message import DecodeError

from seed_rl.grpc import protocol
from seed_rl.grpc.codec import Layout, RowCheck
from seed_rl.grpc.leases import Lease, Leases, range_text
from seed_rl.grpc.protocol import StatusCode
from seed_rl.grpc.service_pb2 import JoinRequest, JoinResponse

# Times that both servers keep.
WAITED_FOR_SECS = 1.0  # silent for longer, a stream's rows are no longer waited for
WARN_OF_SILENCE_SECS = 30.0
TICK_SECS = 0.5  # how often is looked after the silent
CLOSE_SECS = 1.0  # given to clients to read how their stream ended

_MAX_DETAILS = 4000  # a status has to fit into HTTP/2 headers, of which 8 KiB are sure to pass
_MAX_NAME = 200
# All that stands for itself in a status; each other byte takes three.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
# Nobody's mistake: the actor comes again.
_PASSING = {StatusCode.ABORTED, StatusCode.NOT_FOUND, StatusCode.UNAVAILABLE}

_log = logging.getLogger(__name__)


class Refusal(Exception):
    """Ends a call with a status."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = _fitting(details)


def closing() -> Refusal:
    return Refusal(StatusCode.UNAVAILABLE, protocol.SHUTTING_DOWN)


def replaced() -> Refusal:
    return Refusal(StatusCode.ABORTED, "this lease was replaced by another")


class End(enum.Enum):
    """How an actor's stream ended, in the words of the log."""

    LEFT = "%s left"
    LOST = "lost %s: its connection broke, or it stopped answering"
    REPLACED = "%s came back on another connection"
    DISMISSED = "%s dismissed"


class Admission:
    """Decides on Join and Act.

    Args:
      step_layout: fields of the rows that actors send.
      action_layout: fields of the answers.
      description: JSON object that tells actors what to run.
      num_envs: the number of environments of all actors together; their ids start at 0.
      batch_size: rows of a full batch.
      token: secret that actors must show; empty or None asks for none.
      replace: ends the call of a lease, if it has one, with `replaced()`: its holder has come back
        before the end of its old stream was noticed. On return none of its rows may be in a batch
        that others are still added to.
    """

    def __init__(
        self,
        step_layout: Layout,
        action_layout: Layout,
        description: str,
        num_envs: int,
        batch_size: int,
        token: str | None,
        replace: Callable[[Lease], None],
    ) -> None:
        self._step_layout = step_layout
        self._action_layout = action_layout
        self._description = description
        self._num_envs = num_envs
        self._batch_size = batch_size
        self._token = (token or "").encode()
        self._replace = replace
        self._leases = Leases(num_envs)
        self._silent: set[Lease] = set()  # those that the log has told of

    def missing_env_ids(self) -> list[int]:
        """Environments that no connected actor runs. Can be asked from any thread."""
        return self._leases.missing_env_ids()

    def join(self, payload: bytes, token: str, peer: str) -> bytes:
        """The serialised JoinResponse to a serialised JoinRequest. Raises Refusal."""
        self._check_token(token)
        try:
            request = JoinRequest.FromString(payload)
        except DecodeError:
            raise Refusal(
                StatusCode.INVALID_ARGUMENT, f"saw {len(payload)} bytes that are no JoinRequest"
            ) from None
        if request.protocol_version != protocol.PROTOCOL_VERSION:
            raise Refusal(
                StatusCode.FAILED_PRECONDITION,
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
            holder = f"{_printable(request.name) or 'without a name'} at {peer}"
            response.lease = self._grant(request, holder).id
        return response.SerializeToString()

    def open(self, lease_id: str, token: str) -> Lease:
        """The lease of an Act call, which belongs to this call from now on. Raises Refusal."""
        self._check_token(token)
        lease = self._leases.open(lease_id)
        if lease is None:
            raise Refusal(StatusCode.NOT_FOUND, "the lease is unknown or was given up: join again")
        _log.info("%s joined", lease)
        return lease

    def end(self, lease: Lease, how: End) -> None:
        """The lease's call is over."""
        # Told first: whoever then finds the environments missing can read why.
        _log.log(logging.WARNING if how is End.LOST else logging.INFO, how.value, lease)
        self._leases.release(lease)
        self._silent.discard(lease)

    def tell_of_silent(self, silences: Iterable[tuple[Lease, float]]) -> None:
        """Logs, once each, which leases have sent nothing for long; all are given with seconds."""
        silent = set()
        for lease, secs in silences:
            if secs >= WARN_OF_SILENCE_SECS:
                silent.add(lease)
                if lease not in self._silent:
                    _log.warning("%s has sent nothing for %.0f s; the others go on", lease, secs)
        self._silent = silent

    def bad_rows(self, lease: Lease, error: ValueError) -> Refusal:
        """Of a message that `Layout.locate` or `RowCheck.check` found wrong."""
        return Refusal(StatusCode.INVALID_ARGUMENT, f"{lease}: {error}")

    def explain(self, lease: Lease, message: bytes, check: RowCheck) -> Refusal:
        """What is wrong with a message that was found so by other means."""
        try:
            check.check(message, *self._step_layout.locate(message))
        except ValueError as error:
            return self.bad_rows(lease, error)
        raise RuntimeError(f"the native core found a good message of {lease} bad")

    def _check_token(self, token: str) -> None:
        if self._token and not hmac.compare_digest(token.encode(), self._token):
            raise Refusal(
                StatusCode.UNAUTHENTICATED,
                "the token is missing or wrong: start the actor with the learner's --token",
            )

    def _check_request(self, request: JoinRequest) -> None:
        if request.total_num_envs and request.total_num_envs != self._num_envs:
            raise Refusal(
                StatusCode.FAILED_PRECONDITION,
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
                raise Refusal(StatusCode.INVALID_ARGUMENT, f"{name}: {error}") from error
            if difference:
                raise Refusal(
                    StatusCode.FAILED_PRECONDITION,
                    f"{name}: the actor's environments don't match the learner's: {difference}",
                )
        if request.num_envs > self._batch_size:
            raise Refusal(
                StatusCode.FAILED_PRECONDITION,
                f"an actor's message of {request.num_envs} environments doesn't fit into the "
                f"learner's batches of {self._batch_size}: wanted --env_batch_size / --env_groups "
                "<= --inference_batch_size",
            )
        if request.first_env_id + request.num_envs > self._num_envs:
            raise Refusal(
                StatusCode.OUT_OF_RANGE,
                f"the actor asks for environments "
                f"{range_text(request.first_env_id, request.num_envs)}, the learner has "
                f"{range_text(0, self._num_envs)}: wanted --task < num_envs / env_batch_size",
            )

    def _grant(self, request: JoinRequest, holder: str) -> Lease:
        while lease := self._leases.conflict(request.first_env_id, request.num_envs):
            if lease.id != request.previous_lease:
                raise Refusal(
                    StatusCode.ALREADY_EXISTS,
                    f"environments {range_text(request.first_env_id, request.num_envs)} can't be "
                    f"had: {lease.envs} are held by actor {lease.holder}: give each actor a --task "
                    "of its own, or stop that one",
                )
            self._replace(lease)
            self._leases.release(lease)
        return self._leases.grant(holder, request.first_env_id, request.num_envs)


def log_refusal(peer: str, refusal: Refusal) -> None:
    if refusal.code not in _PASSING:
        _log.warning("refused %s: %s", peer, refusal.details)


def _fitting(details: str) -> str:
    """What can be sent of it, whatever an actor has put into it."""
    details = details.encode(errors="backslashreplace").decode()
    kept = details[:_MAX_DETAILS]
    while len(urllib.parse.quote(kept, safe=_PLAIN)) > _MAX_DETAILS:
        kept = kept[: len(kept) * 3 // 4]
    return kept if kept == details else f"{kept}..."


def _printable(name: str) -> str:
    """A name that fits into a line of the log."""
    return "".join(c if c.isprintable() else "?" for c in name[:_MAX_NAME])
