"""What the native client makes of learners that know HTTP/2 and gRPC badly, byte by byte, and what
else only it can get wrong. The rest is tested with both clients.
"""

import collections
import contextlib
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from seed_rl.grpc import core, protocol
from seed_rl.grpc.client import Disconnected, Finished, RangeTaken, Refused
from seed_rl.grpc.codec import action_layout, step_layout
from seed_rl.grpc.server import ServerClosed, make_server
from seed_rl.grpc.service_pb2 import JoinResponse
from seed_rl.specs import ArraySpec

if core.why_python():
    pytest.skip(core.why_python(), allow_module_level=True)

from seed_rl.grpc.native_client import NativeClient

STEP = step_layout(ArraySpec((4,), "uint8"))
ACTION = action_layout(ArraySpec((), "int32", 0, 1_000_000))

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE = (
    0,
    1,
    3,
    4,
    5,
    6,
    7,
    8,
)
CONTINUATION = 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4
JOIN, ACT = 1, 3  # streams


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def hpack(*headers):
    """Headers as literals, without any table."""

    def text(value):
        data = value if isinstance(value, bytes) else value.encode()
        if len(data) < 127:
            return bytes([len(data)]) + data
        rest, length = len(data) - 127, b"\x7f"
        while rest > 127:
            length += bytes([rest & 127 | 128])
            rest >>= 7
        return length + bytes([rest]) + data

    return b"".join(b"\0" + text(name) + text(value) for name, value in headers)


def headers(stream, *pairs, end=False, status="200", content_type="application/grpc"):
    block = hpack((":status", status))
    if content_type:
        block += hpack(("content-type", content_type))
    flags = END_HEADERS | (END_STREAM if end else 0)
    return frame(HEADERS, flags, stream, block + hpack(*pairs))


def trailers(stream, *pairs):
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, hpack(*pairs))


def reset(code, stream=ACT):
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def goaway(last_stream, code=0, text=b""):
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream, code) + text)


def data(message, stream=ACT, compressed=0, length=None, end=False):
    prefix = struct.pack(">BI", compressed, len(message) if length is None else length)
    return frame(DATA, END_STREAM if end else 0, stream, prefix + message)


def answer(actions, **options):
    return data(ACTION.encode([np.array(actions, np.int32)]), **options)


LEASED = JoinResponse(
    description="{}", step_layout=STEP.to_json(), action_layout=ACTION.to_json(), lease="lease"
).SerializeToString()
SETTLED = frame(SETTINGS, 0, 0)
JOINED = headers(JOIN) + data(LEASED, stream=JOIN) + trailers(JOIN, ("grpc-status", "0"))
OPENED = headers(ACT, (protocol.LEASE_KEY, "lease"))
OK = trailers(ACT, ("grpc-status", "0"))


class Connection:
    """The learner's end of one connection. Keeps what it reads, by stream."""

    def __init__(self, connected):
        self.socket = connected
        self.socket.settimeout(20)
        self.received = collections.defaultdict(bytes)
        self.headers = set()
        self.ended = set()
        self.pings, self.pongs = [], []
        self.resets = {}
        self.has_goodbye = False
        self.is_over = False
        self._input = b""
        self._starts = True

    def send(self, sent):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(sent)

    def read_until(self, condition):
        while not condition():
            assert not self.is_over, "the client went"
            self._read()

    def read_to_end(self):
        while not self.is_over:
            self._read()

    def read_rows(self, n=2):
        size = 5 + len(STEP.header(n)) + n * STEP.row_bytes
        self.read_until(lambda: len(self.received[ACT]) >= size)

    def _read(self):
        try:
            received = self.socket.recv(1 << 20)
        except ConnectionResetError:
            received = b""
        self.is_over = not received
        self._input += received
        if self._starts and len(self._input) >= len(PREFACE):
            assert self._input.startswith(PREFACE)
            self._input = self._input[len(PREFACE) :]
            self._starts = False
        while not self._starts and len(self._input) >= 9:
            length = int.from_bytes(self._input[:3], "big")
            if len(self._input) < 9 + length:
                break
            kind, flags, stream = struct.unpack(">BBI", self._input[3:9])
            self._handle(kind, flags, stream, self._input[9 : 9 + length])
            self._input = self._input[9 + length :]

    def _handle(self, kind, flags, stream, payload):
        if kind == DATA:
            self.received[stream] += payload
        elif kind == HEADERS:
            self.headers.add(stream)
        elif kind == PING:
            (self.pongs if flags & ACK else self.pings).append(payload)
        elif kind == GOAWAY:
            self.has_goodbye = True
        elif kind == RST_STREAM:
            self.resets[stream] = int.from_bytes(payload, "big")
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            self.ended.add(stream)


@pytest.fixture
def learner(tmp_path):
    """A function that starts a learner which does with each connection what a function says, and
    returns its address.
    """
    stop = threading.Event()
    threads, failures = [], []
    listener = socket.socket(socket.AF_UNIX)

    def start(script):
        listener.bind(f"{tmp_path}/s")
        listener.listen(100)
        listener.settimeout(0.05)

        def run():
            try:
                while not stop.is_set():
                    try:
                        connected, _ = listener.accept()
                    except TimeoutError:
                        continue
                    with connected:
                        script(Connection(connected))
            except BaseException as error:
                failures.append(error)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return f"unix:{tmp_path}/s"

    yield start
    stop.set()
    for thread in threads:
        thread.join()
    listener.close()
    for failure in failures:
        raise failure


@pytest.fixture
def client():
    """A function that makes a client of an address."""
    with contextlib.ExitStack() as stack:

        def make(address, **options):
            made = NativeClient(address, **options)
            stack.callback(made.close)
            return made

        yield make


def rows(n=2):
    columns = STEP.empty(n)
    columns[0][:] = range(n)
    return columns


def join(made, timeout_secs=10.0):
    return made.join(0, 2, STEP, ACTION, timeout_secs=timeout_secs)


def join_and_act(made, times, timeout_secs=10.0):
    join(made, timeout_secs)
    for _ in range(times):
        made.act(rows(), timeout_secs=20)


def admit(connection):
    """What a good learner does until the rows have come."""
    connection.send(SETTLED)
    connection.read_until(lambda: JOIN in connection.ended)
    connection.send(JOINED)
    connection.read_until(lambda: ACT in connection.headers)
    connection.send(OPENED)
    connection.read_rows()


def answers_with(sent, then_closes=False):
    def script(connection):
        admit(connection)
        connection.send(sent)
        if not then_closes:
            connection.read_to_end()

    return script


@pytest.mark.parametrize(
    "sent",
    [
        answer([7, 8]),
        frame(PING, 0, 0, b"12345678") + frame(99, 3, ACT, b"unknown") + answer([7, 8]),
        goaway(ACT) + answer([7, 8]),
        goaway(2**31 - 1) + answer([7, 8]),
        # Padded, and empty frames.
        frame(DATA, 0, ACT) + frame(DATA, 8, ACT, b"\x03" + answer([7, 8])[9:] + b"\0\0\0"),
        # A length with more bytes than it needs is as good.
        data(b"\x0a\x88\0" + np.array([7, 8], np.int32).tobytes()),
    ],
)
def test_answers_may_come_in_any_form_and_cut_anywhere(learner, client, sent):
    def script(connection):
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        admit(connection)
        for i in range(len(sent)):
            connection.send(sent[i : i + 1])
            time.sleep(0.0005)
        connection.read_to_end()

    made = client(learner(script))
    assert join(made) == "lease"
    (actions,) = made.act(rows())
    assert actions.tolist() == [7, 8]
    assert actions.dtype == np.int32
    actions[:] = 0  # it can be written to


def test_the_answer_before_the_end_of_a_stream_counts(learner, client):
    made = client(
        learner(
            answers_with(
                answer([7, 8]) + trailers(ACT, ("grpc-status", "0"), (protocol.FINISHED_KEY, "1")),
                then_closes=True,
            )
        )
    )
    join(made)
    assert made.act(rows())[0].tolist() == [7, 8]
    for _ in range(2):
        with pytest.raises(Finished):
            made.act(rows())


@pytest.mark.parametrize(
    ("sent", "error", "words"),
    [
        (OK, Disconnected, "ended the stream"),
        (trailers(ACT, ("grpc-status", "6"), ("grpc-message", "a%20b%zz%C3%A9%")), RangeTaken,
         "a b%zzé%$"),
        (trailers(ACT, ("grpc-status", "3"), ("grpc-message", "env 3")), Refused, "^env 3$"),
        (trailers(ACT, ("grpc-status", "14"), ("grpc-message", "%FF")), Disconnected, "\ufffd"),
        (trailers(ACT, ("grpc-status", "14x")), Disconnected, "saw grpc-status 14x"),
        (trailers(ACT, ("grpc-status", "-1")), Disconnected, "saw grpc-status -1"),
        (trailers(ACT, ("grpc-status", "17")), Disconnected, "saw grpc-status 17"),
        (trailers(ACT, ("grpc-status", "99999999999999")), Disconnected, "saw grpc-status 9999"),
        (trailers(ACT, ("x", "y")), Disconnected, "without a status"),
        (frame(DATA, END_STREAM, ACT), Disconnected, "without a status"),
        (frame(DATA, 0, ACT, b"\0\0\0\0\x0a123") + OK, Disconnected, "within a message"),
        (frame(DATA, 0, ACT, b"\0\0") + OK, Disconnected, "within a message"),
        # What ends with a status that isn't OK may end anywhere.
        (frame(DATA, 0, ACT, b"\0\0") + trailers(ACT, ("grpc-status", "9")), Refused, "^$"),
        (answer([7, 8], compressed=1), Disconnected, "compressed message"),
        (answer([7, 8], compressed=2), Disconnected, "no message of gRPC"),
        (data(b"", length=2**32 - 1), Disconnected, "message of 4294967295 bytes, wanted at most"),
        (answer([7]), Disconnected, "sent 1 actions, wanted 2"),
        (answer([7, 8, 9]), Disconnected, "sent 3 actions, wanted 2"),
        (data(b""), Disconnected, "saw 0 rows"),
        (data(b"\x0a\x07" + b"x" * 7), Disconnected, "saw 7 bytes, wanted a multiple of 4"),
        (data(b"\x0a\x09" + b"x" * 8), Disconnected, "not one field"),
        (data(b"\x12\x08" + b"x" * 8), Disconnected, "not one field"),
        (data(b"\x0a" + b"\xff" * 12), Disconnected, "not one field"),
        (reset(0), Disconnected, "reset: NO_ERROR"),
        (reset(1), Disconnected, "reset: PROTOCOL_ERROR"),
        (reset(7), Disconnected, "reset: REFUSED_STREAM"),
        (reset(8), Disconnected, "reset: CANCEL"),
        (reset(11), Refused, "reset: ENHANCE_YOUR_CALM"),
        (reset(12), Refused, "reset: INADEQUATE_SECURITY"),
        (reset(12345), Disconnected, "reset: unknown"),
        (goaway(JOIN, 11, b"too_many_pings"), Disconnected,
         "takes no calls: ENHANCE_YOUR_CALM, too_many_pings"),
        (goaway(JOIN, 0), Disconnected, "takes no calls$"),
        (goaway(JOIN, 2, b"\xff" * 5000), Disconnected, "INTERNAL_ERROR, \ufffd{200}$"),
        # No HTTP/2.
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 1000, Disconnected, "HTTP/2 is wrong"),
        (frame(SETTINGS, ACK, 0)
         + frame(PUSH_PROMISE, END_HEADERS, ACT, b"\0\0\0\2" + hpack((":method", "GET"))),
         Disconnected, "HTTP/2 is wrong"),
        (frame(DATA, 0, 9, b"x"), Disconnected, "HTTP/2 is wrong"),
        (frame(HEADERS, END_HEADERS, ACT, b"\xff\xff\xff\xff\xff"), Disconnected,
         "HTTP/2 is wrong"),
        (frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), Disconnected, "HTTP/2 is wrong"),
        (frame(WINDOW_UPDATE, 0, ACT, b"\x7f\xff\xff\xff"), Disconnected, "FLOW_CONTROL_ERROR"),
        (frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31)), Disconnected, "HTTP/2 is wrong"),
        (frame(HEADERS, END_HEADERS, ACT, hpack(("x", "y"))), Disconnected, "reset: PROTOCOL"),
        (trailers(ACT, ("Upper", "y")), Disconnected, "reset: PROTOCOL|without a status"),
        (frame(HEADERS, 0, ACT, hpack(("x", "y" * 16000)))
         + b"".join(frame(CONTINUATION, 0, ACT, hpack(("x", "y" * 16000))) for _ in range(4))
         + frame(CONTINUATION, END_HEADERS, ACT), Disconnected, "headers|HTTP/2 is wrong"),
        # Small on the wire, large in memory: an entry of the table, again and again.
        (frame(HEADERS, 0, ACT, b"\x40\x01x\x7f\x81\x1e" + b"y" * 3968)
         + frame(CONTINUATION, END_HEADERS, ACT, b"\xbe" * 15000), Disconnected,
         "more than 65536 bytes of headers"),
    ],
)  # fmt: skip
def test_bad_learners_are_told_apart(learner, client, sent, error, words):
    made = client(learner(answers_with(sent)), keepalive_secs=5)
    join(made)
    with pytest.raises(error, match=words):
        made.act(rows(), timeout_secs=20)
    with pytest.raises((error, Disconnected)):
        made.act(rows(), timeout_secs=0.2)


@pytest.mark.parametrize(
    ("sent", "error", "words"),
    [
        (headers(ACT, ("grpc-status", "5"), ("grpc-message", "join%21"), end=True), Disconnected,
         "join!"),
        (headers(ACT, ("grpc-status", "16"), end=True, content_type=""), Refused, "^$"),
        (headers(ACT, ("grpc-status", "12"), end=True, status="404"), Refused, "^$"),
        (headers(ACT, end=True), Disconnected, "without a status"),
        (headers(ACT, content_type="text/html"), Disconnected, "saw content-type text/html"),
        (headers(ACT, content_type="application/grpcweb"), Disconnected, "saw content-type"),
        (headers(ACT, content_type=""), Disconnected, "saw content-type none"),
        (headers(ACT, status="401"), Refused, "HTTP status 401"),
        (headers(ACT, status="404", end=True), Refused, "HTTP status 404"),
        (headers(ACT, status="503"), Disconnected, "HTTP status 503"),
        (headers(ACT, status="500"), Disconnected, "HTTP status 500"),
        (headers(ACT, status="2x0"), Disconnected, "reset: PROTOCOL"),
        (frame(HEADERS, END_HEADERS, ACT, hpack(("x", "y"))), Disconnected, "reset: PROTOCOL"),
        (answer([7, 8]), Disconnected, "HTTP/2 is wrong"),
        (headers(ACT) + OK, Disconnected, "ended the stream"),
        (headers(ACT) + trailers(ACT, ("grpc-status", "0"), (protocol.FINISHED_KEY, "1")),
         Finished, "over"),
        (OPENED + answer([7, 8]), Disconnected, "more than one answer"),
        (headers(ACT), Disconnected, "didn't answer within 1 s"),
        (b"", Disconnected, "didn't answer within 1 s"),
    ],
)  # fmt: skip
def test_bad_openings_are_told_apart(learner, client, sent, error, words):
    def script(connection):
        connection.send(SETTLED)
        connection.read_until(lambda: JOIN in connection.ended)
        connection.send(JOINED)
        connection.read_until(lambda: ACT in connection.headers)
        connection.send(sent)
        connection.read_to_end()

    made = client(learner(script))
    with pytest.raises(error, match=words):
        join_and_act(made, 1, timeout_secs=1)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (headers(JOIN) + trailers(JOIN, ("grpc-status", "0")), "without a message"),
        (headers(JOIN) + data(b"\xff" * 50, JOIN) + trailers(JOIN, ("grpc-status", "0")), "pars"),
        (headers(JOIN) + data(LEASED, JOIN) * 2, "more than one answer"),
        (headers(JOIN) + data(b"", JOIN, length=1 << 30), "wanted at most 67108864"),
        (b"", "didn't answer within 1 s"),
    ],
)
def test_bad_answers_to_join(learner, client, sent, words):
    def script(connection):
        connection.send(SETTLED)
        connection.read_until(lambda: JOIN in connection.ended)
        connection.send(sent)
        connection.read_to_end()

    made = client(learner(script))
    with pytest.raises(Disconnected, match=words):
        made.describe(timeout_secs=1)


def test_interim_headers_are_skipped(learner, client):
    interim = frame(HEADERS, END_HEADERS, ACT, hpack((":status", "103"), ("grpc-status", "5")))

    def script(connection):
        connection.send(SETTLED)
        connection.read_until(lambda: JOIN in connection.ended)
        connection.send(JOINED)
        connection.read_until(lambda: ACT in connection.headers)
        connection.send(interim * 3 + OPENED)
        connection.read_rows()
        connection.send(answer([7, 8]))
        connection.read_to_end()

    made = client(learner(script))
    join(made)
    assert made.act(rows())[0].tolist() == [7, 8]


def test_the_learner_may_be_gone_after_any_byte(learner, client):
    parts = [SETTLED + JOINED, OPENED, answer([7, 8]), OK]
    total = sum(map(len, parts))
    sizes = []

    def script(connection):
        left = sizes.pop() if sizes else 0
        conditions = [
            lambda: JOIN in connection.ended,
            lambda: ACT in connection.headers,
            lambda: len(connection.received[ACT]) > 2 * STEP.row_bytes,
            lambda: True,
        ]
        for part, condition in zip(parts, conditions, strict=True):
            if not left:
                return
            connection.read_until(condition)
            connection.send(part[:left])
            left = max(0, left - len(part))

    address = learner(script)
    for size in range(total + 1):
        sizes[:] = [size]
        made = client(address)
        with pytest.raises(Disconnected, match=r"no connection|ended the stream") as caught:
            join_and_act(made, 2)
        assert ("ended the stream" in str(caught.value)) == (size == total)
        made.close()


def test_an_answer_that_nothing_asked_for_ends_the_stream(learner, client):
    made = client(learner(answers_with(answer([7, 8]) * 2)))
    with pytest.raises(Disconnected, match="more than one answer"):
        join_and_act(made, 2)


def test_answers_before_the_rows_are_through_end_the_stream(learner, client):
    """Else the buffer would be overwritten while it is sent."""

    def script(connection):
        connection.send(frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 10)))
        connection.read_until(lambda: JOIN in connection.headers)
        connection.send(frame(WINDOW_UPDATE, 0, JOIN, struct.pack(">I", 10_000)))
        connection.read_until(lambda: JOIN in connection.ended)
        connection.send(JOINED)
        connection.read_until(lambda: ACT in connection.headers)
        connection.send(OPENED)
        connection.read_until(lambda: len(connection.received[ACT]) == 10)
        connection.send(answer([7, 8]))
        connection.read_to_end()

    made = client(learner(script))
    join(made)
    assert made.act(rows())[0].tolist() == [7, 8]
    with pytest.raises(Disconnected, match="before it had read all"):
        made.act(rows(), timeout_secs=10)


def test_windows_of_a_byte_only_slow_it_down(learner, client):
    def script(connection):
        connection.send(frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 1)))

        def read_slowly(stream, is_all):
            while not is_all():
                connection.send(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 1)))
                size = len(connection.received[stream])
                connection.read_until(
                    lambda size=size: len(connection.received[stream]) > size or is_all()
                )

        connection.read_until(lambda: JOIN in connection.headers)
        read_slowly(JOIN, lambda: JOIN in connection.ended)
        connection.send(JOINED)
        connection.read_until(lambda: ACT in connection.headers)
        connection.send(OPENED)
        sent = struct.pack(">BI", 0, len(message)) + message
        read_slowly(ACT, lambda: len(connection.received[ACT]) >= len(sent))
        assert connection.received[ACT] == sent
        connection.send(answer([7, 8]))
        connection.read_to_end()

    columns = rows()
    columns[4][:] = np.arange(8).reshape(2, 4)
    message = STEP.encode(columns)
    made = client(learner(script))
    join(made)
    assert made.act(columns)[0].tolist() == [7, 8]


def test_what_send_could_not_write_goes_on_without_receive(learner, client):
    """The other group of environments is stepped meanwhile."""
    step = step_layout(ArraySpec((250_000,), "uint8"))
    has_all = threading.Event()

    def script(connection):
        connection.send(SETTLED)
        connection.read_until(lambda: JOIN in connection.ended)
        connection.send(JOINED)
        connection.read_until(lambda: ACT in connection.headers)
        window = struct.pack(">I", 1 << 30)
        connection.send(OPENED + frame(WINDOW_UPDATE, 0, 0, window))
        connection.send(frame(WINDOW_UPDATE, 0, ACT, window))
        connection.read_until(lambda: len(connection.received[ACT]) >= 8 * step.row_bytes)
        message = step.encode(columns)
        assert connection.received[ACT] == struct.pack(">BI", 0, len(message)) + message
        has_all.set()
        connection.send(answer(range(8)))
        connection.read_to_end()

    columns = step.empty(8)
    columns[4][:] = np.random.default_rng(0).integers(0, 256, columns[4].shape, np.uint8)
    made = client(learner(script))
    made.join(0, 8, step, ACTION)
    made.send(columns)
    assert has_all.wait(20)
    assert made.receive()[0].tolist() == list(range(8))


def test_pings_are_answered_while_environments_are_stepped(learner, client):
    """And a learner that answers none is noticed then, too."""
    ponged = threading.Event()

    def script(connection):
        admit(connection)
        connection.send(answer([7, 8]) + frame(PING, 0, 0, b"12345678"))
        connection.read_until(lambda: connection.pongs == [b"12345678"])
        ponged.set()
        connection.read_to_end()
        assert connection.pings

    made = client(learner(script), keepalive_secs=0.5)
    join(made)
    made.act(rows())
    assert ponged.wait(20)
    time.sleep(2)
    with pytest.raises(Disconnected, match="doesn't answer pings"):
        made.act(rows())


def test_floods_end_the_connection(learner, client):
    """Answers to pings are not piled up for a learner that doesn't read them."""

    def script(connection):
        admit(connection)
        connection.socket.settimeout(0.2)
        with contextlib.suppress(OSError):
            while True:
                connection.socket.sendall(frame(PING, 0, 0, b"12345678") * 1000)

    made = client(learner(script), keepalive_secs=1)
    join(made)
    with pytest.raises(Disconnected, match=r"HTTP/2 is wrong|closed the conn|Connection reset"):
        made.act(rows(), timeout_secs=20)


def test_close_is_a_goodbye(learner, client):
    seen = []

    def script(connection):
        admit(connection)
        connection.send(answer([7, 8]))
        connection.read_until(lambda: ACT in connection.ended)
        connection.send(OK)
        connection.read_to_end()
        seen.append((connection.has_goodbye, ACT in connection.ended))

    made = client(learner(script))
    join(made)
    made.act(rows())
    made.close()
    while not seen:
        time.sleep(0.01)
    assert seen == [(True, True)]
    for call in (lambda: made.act(rows()), made.describe):
        with pytest.raises(Disconnected, match="the client was closed"):
            call()


def test_close_ends_a_wait_in_another_thread(learner, client):
    seen = []

    def script(connection):
        admit(connection)
        started.set()
        connection.read_to_end()
        seen.append(connection.resets)

    started = threading.Event()
    made = client(learner(script))
    join(made)

    def close():
        started.wait()
        made.close()

    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(Disconnected, match="the client was closed"):
        made.act(rows())
    thread.join()
    while not seen:
        time.sleep(0.01)
    assert seen == [{ACT: 8}]


def test_signals_are_handled_while_it_waits(learner, client):
    made = client(learner(answers_with(b"")))
    join(made)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            made.act(rows())
        # One whose handler raises nothing is no reason to end.
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Disconnected, match="gave up"):
            made.act(rows())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


FORK = """
import os, signal, sys
from seed_rl.grpc.codec import action_layout, step_layout
from seed_rl.grpc.native_client import NativeClient
from seed_rl.specs import ArraySpec

step = step_layout(ArraySpec((4,), "uint8"))
rows = step.empty(2)
rows[0][:] = range(2)
made = NativeClient(sys.argv[1])
made.join(0, 2, step, action_layout(ArraySpec((), "int32", 0, 1_000_000)), timeout_secs=10)
made.act(rows)
child = os.fork()
if not child:
    signal.alarm(20)
    made.close()
    del made
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(made.act(rows)[0].tolist())
made.close()
"""


def test_a_fork_leaves_the_connection_alone(learner):
    def script(connection):
        admit(connection)
        connection.send(answer([7, 8]))
        connection.read_rows(4)
        connection.send(answer([9, 10]))
        connection.read_to_end()

    # In a process of its own: after other tests' use of grpcio, a forked child may fail in that.
    done = subprocess.run(
        [sys.executable, "-c", FORK, learner(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "[9, 10]\n", done.stderr


def test_a_connection_that_broke_between_calls_is_made_anew(learner, client):
    def script(connection):
        connection.send(SETTLED)
        connection.read_until(lambda: JOIN in connection.ended)
        connection.send(JOINED)

    made = client(learner(script))
    for _ in range(3):
        assert made.describe().step_layout == STEP
        time.sleep(0.1)


def test_calls_that_fail_leave_the_connection_whole(learner, client):
    """As a range that is still taken does."""

    def script(connection):
        connection.send(SETTLED)
        for stream in (1, 3, 5):
            connection.read_until(lambda stream=stream: stream in connection.ended)
            connection.send(headers(stream, ("grpc-status", "6"), end=True))
        connection.read_to_end()

    made = client(learner(script))
    for _ in range(3):
        with pytest.raises(RangeTaken):
            join(made)


def test_a_learner_whose_backlog_is_full_is_waited_for(client, tmp_path):
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as stack:
        listener.bind(f"{tmp_path}/s")
        listener.listen(0)
        for _ in range(3):
            pending = stack.enter_context(socket.socket(socket.AF_UNIX))
            pending.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                pending.connect(f"{tmp_path}/s")
        start = time.monotonic()
        with pytest.raises(Disconnected, match=r"didn't answer within 0.5 s"):
            client(f"unix:{tmp_path}/s").describe(timeout_secs=0.5)
        assert 0.5 <= time.monotonic() - start < 10


def test_every_address_of_a_name_is_tried(client):
    with pytest.raises(Disconnected) as caught:
        client("localhost:1").describe()
    assert "127.0.0.1: Connection refused" in str(caught.value)
    with pytest.raises(
        Disconnected, match=r"no connection to the learner at no\.such\.invalid:1: "
    ):
        client("no.such.invalid:1").describe(timeout_secs=20)


@pytest.mark.parametrize("token", ["é", "a\nb", "a\0b"])
def test_tokens_that_no_header_can_hold_are_told(learner, client, token):
    made = client(learner(lambda _: None), token=token)
    with pytest.raises(Disconnected, match=r"seed-rl-token .*printable ASCII"):
        made.describe()


def test_messages_larger_than_any_window(client, server_core):
    step = step_layout(ArraySpec((5_000_000,), "uint8"))
    action = action_layout(ArraySpec((2_000_000,), "float32"))
    server = make_server("localhost:0", step, action, "{}", 4, 4, 0.05, core=server_core)

    def answer_all():
        with contextlib.suppress(ServerClosed):
            while True:
                batch = server.next_batch(1.0)
                if batch is not None:
                    part = batch.columns[4][:, :2_000_000]
                    server.reply(batch, [part.astype(np.float32)])

    thread = threading.Thread(target=answer_all)
    thread.start()
    try:
        made = client(server.address)
        made.join(0, 4, step, action)
        columns = step.empty(4)
        columns[0][:] = range(4)
        rng = np.random.default_rng(0)
        for _ in range(3):
            columns[4][:] = rng.integers(0, 256, columns[4].shape, np.uint8)
            (actions,) = made.act(columns)
            np.testing.assert_array_equal(actions, columns[4][:, :2_000_000])
            columns[1][:] = 1
    finally:
        server.close(finished=True)
        thread.join()


def test_columns_of_any_kind_are_sent_as_they_are_meant(learner, client):
    wide = np.arange(16, dtype=np.uint8).reshape(2, 8)[:, ::2]
    columns = [
        np.array([0, 1], ">i4").astype("<i4"),
        np.zeros(4, np.uint8)[::2],
        np.zeros(2, np.float32),
        np.array(0, np.float32).repeat(2),
        wide,
    ]

    def script(connection):
        admit(connection)
        message = STEP.encode(columns)
        assert connection.received[ACT] == struct.pack(">BI", 0, len(message)) + message
        connection.send(answer([7, 8]))
        connection.read_to_end()

    made = client(learner(script))
    join(made)
    assert made.act(columns)[0].tolist() == [7, 8]
    for wrong, words in (
        (columns[:4], "saw 4 columns, wanted 5"),
        ([column[:0] for column in columns], "saw 0 rows"),
        ([*columns[:4], wide[:1]], r"observation: saw uint8\[1, 4\]"),
        ([*columns[:4], wide.tolist()], "observation: saw list"),
        ([*columns[:2], np.zeros(2), *columns[3:]], "reward: saw float64"),
        ([*columns[:2], np.zeros(2, ">f4"), *columns[3:]], "reward: saw >f4"),
    ):
        for call in (made.act, made.send):
            with pytest.raises(ValueError, match=words):
                call(wrong)
