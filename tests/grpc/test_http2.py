"""What a server makes of peers that know HTTP/2 and gRPC badly or not at all, byte by byte."""

import collections
import contextlib
import re
import socket
import struct
import time
import weakref

import numpy as np
import pytest

from seed_rl.grpc import core, protocol
from seed_rl.grpc.codec import action_layout, step_layout
from seed_rl.grpc.server import make_server as new_server
from seed_rl.grpc.service_pb2 import JoinRequest, JoinResponse
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType

hpack = pytest.importorskip("hpack")

STEP = step_layout(ArraySpec((4,), "uint8"))
ACTION = action_layout(ArraySpec((), "int32", 0, 1_000_000))
MAX_BYTES = protocol.max_message_bytes(8, STEP.row_bytes)
NEVER = 60.0

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
CONTINUATION = 9
MAX_FRAME = 16384
INITIAL_WINDOW_SIZE = 4
END_STREAM, ACK, END_HEADERS = 1, 1, 4


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def prefixed(message, compressed=0):
    return struct.pack(">BI", compressed, len(message)) + message


def join_request(**fields):
    values = {
        "protocol_version": protocol.PROTOCOL_VERSION,
        "name": "raw",
        "step_layout": STEP.to_json(),
        "action_layout": ACTION.to_json(),
    }
    return JoinRequest(**{**values, **fields}).SerializeToString()


def some_rows(env_ids, step_type=StepType.FIRST):
    columns = STEP.empty(len(env_ids))
    columns[0][:] = env_ids
    columns[1][:] = step_type
    return columns


class Stream:
    """What came back on one stream."""

    def __init__(self):
        self.headers = {}
        self.data = b""
        self.is_over = False
        self.reset_code = None

    @property
    def outcome(self):
        """gRPC's status and its details, or how else it ended."""
        if "grpc-status" in self.headers:
            return int(self.headers["grpc-status"]), self.headers.get("grpc-message", "")
        if self.reset_code is not None:
            return "reset", self.reset_code
        return "http", self.headers.get(":status")


LEASES = weakref.WeakKeyDictionary()  # by server, the lease that was given last


class Peer:
    """One connection, on which frames are sent one by one."""

    def __init__(self, server, starts=True):
        self._server = server
        host, _, port = server.address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.streams = {}
        self.pongs = []
        self.is_over = False
        self._input = b""
        self._encoder, self._decoder = hpack.Encoder(), hpack.Decoder()
        self._next_stream = 1
        # Bytes, by stream; 0 is the connection.
        self._first_window = 65535
        self._allowed, self._sent = collections.Counter({0: 65535}), collections.Counter()
        if starts:
            self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))

    def headers(self, path, *more, **replaced):
        values = {
            "method": "POST",
            "scheme": "http",
            "path": path,
            "authority": "localhost",
            "te": "trailers",
            "content_type": "application/grpc",
            **replaced,
        }
        names = {"te": "te", "content_type": "content-type"}
        listed = [
            (names.get(name, f":{name}"), value)
            for name, value in values.items()
            if value is not None
        ]
        return self._encoder.encode([*listed, *more], huffman=False)

    def open(self, path, *more, **replaced):
        """Starts a stream, and returns its number."""
        number, self._next_stream = self._next_stream, self._next_stream + 2
        self.streams[number] = Stream()
        block = self.headers(path, *more, **replaced)
        parts = [block[i : i + MAX_FRAME] for i in range(0, len(block), MAX_FRAME)]
        for part in parts:
            kind = HEADERS if part is parts[0] else CONTINUATION
            flags = END_HEADERS if part is parts[-1] else 0
            self.socket.sendall(frame(kind, flags, number, part))
        return number

    def send(self, number, data, end=False):
        """Sends data as the windows allow, unless the stream ends before."""
        while True:
            while (
                data and not (size := self._sendable(number)) and not self.streams[number].is_over
            ):
                self.read()
            if self.streams[number].is_over:
                return
            size = min(MAX_FRAME, size) if data else 0
            part, data = data[:size], data[size:]
            self._sent[number] += len(part)
            self._sent[0] += len(part)
            self.socket.sendall(frame(DATA, END_STREAM if end and not data else 0, number, part))
            if not data:
                return

    def _sendable(self, number):
        allowed = (self._allowed[0], self._first_window + self._allowed[number])
        return max(0, min(allowed[0] - self._sent[0], allowed[1] - self._sent[number]))

    def read(self):
        """Deals with what arrived, at least one byte of it."""
        try:
            arrived = self.socket.recv(65536)
        except ConnectionError:
            arrived = b""
        if not arrived:
            self.is_over = True
            for stream in self.streams.values():
                stream.is_over = True
            return
        self._input += arrived
        while len(self._input) >= 9:
            size = int.from_bytes(self._input[:3], "big")
            if len(self._input) < 9 + size:
                return
            kind, flags, number = struct.unpack(">BBI", self._input[3:9])
            payload, self._input = self._input[9 : 9 + size], self._input[9 + size :]
            self._take(kind, flags, number, payload)

    def wait(self, number, condition=lambda stream: stream.is_over):
        """The stream, once it is over or the condition holds."""
        stream = self.streams[number]
        until = time.monotonic() + 10
        while not (stream.is_over or condition(stream)):
            assert time.monotonic() < until, "waited in vain"
            self.read()
        return stream

    def outcome(self, number):
        return self.wait(number).outcome

    def answer(self, number, size=1):
        """The messages that came back on the stream, once there are so many."""
        stream = self.wait(number, lambda stream: len(split(stream.data)) >= size)
        return split(stream.data)

    def join(self, first_env_id=0, num_envs=1, **fields):
        """A lease."""
        number = self.open(protocol.JOIN)
        # In place of the lease of the peer before this one, which may still be leaving.
        previous = LEASES.get(self._server, "")
        request = join_request(
            first_env_id=first_env_id, num_envs=num_envs, previous_lease=previous, **fields
        )
        self.send(number, prefixed(request), end=True)
        assert self.outcome(number) == (0, "")
        (response,) = split(self.streams[number].data)
        lease = LEASES[self._server] = JoinResponse.FromString(response).lease
        return lease

    def act(self, first_env_id=0, num_envs=1, *more):
        """Opens a stream for environments."""
        lease = self.join(first_env_id, num_envs)
        number = self.open(protocol.ACT, (protocol.LEASE_KEY, lease), *more)
        self.wait(number, lambda stream: stream.headers)
        return number

    def reset(self):
        """Ends the connection without a word, as a crashed machine does once it is back."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _take(self, kind, flags, number, payload):
        stream = self.streams.get(number, Stream())
        if kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == INITIAL_WINDOW_SIZE:
                    self._first_window = value
            self.socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == WINDOW_UPDATE:
            self._allowed[number] += int.from_bytes(payload, "big")
        elif kind == PING and flags & ACK:
            self.pongs.append(payload)
        elif kind == PING:
            self.socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == HEADERS:
            stream.headers.update(self._decoder.decode(payload))
        elif kind == DATA:
            stream.data += payload
        elif kind == RST_STREAM and not stream.is_over:
            stream.reset_code = int.from_bytes(payload, "big")
            stream.is_over = True
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            stream.is_over = True


def split(data):
    """The whole messages in the data of a stream."""
    messages = []
    while len(data) >= 5:
        size = int.from_bytes(data[1:5], "big")
        if len(data) < 5 + size:
            break
        messages.append(data[5 : 5 + size])
        data = data[5 + size :]
    return messages


@pytest.fixture
def make_peer():
    with contextlib.ExitStack() as stack:

        def make(server, starts=True):
            peer = Peer(server, starts)
            stack.callback(peer.socket.close)
            return peer

        yield make


# What one server refuses the other refuses with the same words.


def one_call(path, *more, **replaced):
    """Sends these bytes as the only data of a call."""

    def run(peer, data=b"", end=True):
        number = peer.open(path, *more, **replaced)
        peer.send(number, data, end)
        return peer.outcome(number)

    return run


def joining(data, *more, **replaced):
    return lambda peer: one_call(protocol.JOIN, *more, **replaced)(peer, data)


def acting(data, *more, end=False):
    """Sends bytes on an accepted stream of environments 2 and 3."""

    def run(peer):
        number = peer.act(2, 2, *more)
        peer.send(number, data, end)
        return peer.outcome(number)

    return run


def opening(*more):
    return lambda peer: one_call(protocol.ACT, *more)(peer, end=False)


def bad_rows(change, env_ids=(2, 3)):
    columns = some_rows(env_ids)
    change(columns)
    return acting(prefixed(STEP.encode(columns)))


def set_value(field, row, value):
    def change(columns):
        columns[field][row] = value

    return change


GZIP = ("grpc-encoding", "gzip")
BAD = {
    "unknown method": lambda peer: one_call("/seed_rl.Seed/Nope")(peer),
    "unknown service": lambda peer: one_call("/seed_rl.Weed/Join")(peer),
    "no path of gRPC": lambda peer: one_call("/")(peer),
    "unknown method with data": lambda peer: one_call("/a/b")(peer, prefixed(b"abc")),
    "content type with a suffix": joining(
        prefixed(join_request()), content_type="application/grpc+proto"
    ),
    "compressed Join": joining(prefixed(b"abc", 1), GZIP),
    "compressed Act": acting(prefixed(b"abc", 1), GZIP),
    "deflated Act": acting(prefixed(b"abc", 1), ("grpc-encoding", "deflate")),
    "unknown encoding": acting(prefixed(b"abc", 1), ("grpc-encoding", "zip")),
    "gzip named, not used": acting(prefixed(b"abc"), GZIP),
    "gzip named in Join, not used": joining(prefixed(join_request()), GZIP),
    "flag without encoding, Join": joining(prefixed(b"abc", 1)),
    "flag without encoding, Act": acting(prefixed(b"abc", 1)),
    "flag with identity, Act": acting(prefixed(b"abc", 1), ("grpc-encoding", "identity")),
    "too large a Join": joining(prefixed(bytes(MAX_BYTES + 1))),
    "too large an Act": acting(prefixed(bytes(MAX_BYTES + 1))),
    "just not too large an Act": acting(prefixed(bytes(MAX_BYTES))),
    "Join of two messages": joining(2 * prefixed(join_request())),
    "Join of garbage": joining(prefixed(b"\xff\xff\xff")),
    "another version": joining(prefixed(join_request(protocol_version=99))),
    "no layout": joining(prefixed(join_request(num_envs=1, step_layout="{"))),
    "another layout": joining(prefixed(join_request(num_envs=1, step_layout="[]"))),
    "another number": joining(prefixed(join_request(num_envs=1, total_num_envs=9))),
    "ids beyond": joining(prefixed(join_request(num_envs=8, first_env_id=1))),
    "too many environments": joining(prefixed(join_request(num_envs=9))),
    "no lease": opening(),
    "empty lease": opening((protocol.LEASE_KEY, "")),
    "unknown lease": opening((protocol.LEASE_KEY, "nonsense")),
    "Act without anything": acting(b"", end=True),
    "Act of half a prefix": acting(b"\0\0", end=True),
    "Act of half a message": acting(prefixed(STEP.encode(some_rows([2, 3])))[:-1], end=True),
    "empty message": acting(prefixed(b"")),
    "one byte": acting(prefixed(b"\x0a")),
    "garbage": acting(prefixed(b"garbage")),
    "columns without end": acting(prefixed(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f")),
    "columns of no bytes": acting(prefixed(b"\x0a\0")),
    "columns longer than said": acting(prefixed(b"\x0a\x11" + bytes(18))),
    "columns shorter than said": acting(prefixed(b"\x0a\x22" + bytes(17))),
    "no whole row": acting(prefixed(b"\x0a\x12" + bytes(18))),
    "another field": acting(prefixed(b"\x12\x11" + bytes(17))),
    "two fields": acting(prefixed(2 * STEP.encode(some_rows([2])))),
    "more rows than a batch": acting(prefixed(STEP.encode(some_rows([2] * 9)))),
    "more rows than environments": acting(prefixed(STEP.encode(some_rows([2, 3, 2])))),
    "an id twice": bad_rows(set_value(0, 1, 2)),
    "an id of another": bad_rows(set_value(0, 1, 4)),
    "an id below": bad_rows(set_value(0, 0, 1)),
    "a negative id": bad_rows(set_value(0, 0, -1)),
    "an unknown step type": bad_rows(set_value(1, 1, 4)),
    "step type 255": bad_rows(set_value(1, 0, 255)),
    "MID at first": bad_rows(set_value(1, 1, StepType.MID)),
    "reward nan": bad_rows(set_value(2, 1, np.nan)),
    "raw reward inf": bad_rows(set_value(3, 0, -np.inf)),
    "several mistakes": bad_rows(lambda c: [set_value(2, 1, np.nan)(c), set_value(1, 1, 9)(c)]),
    "a deadline": lambda peer: one_call(
        protocol.ACT, (protocol.LEASE_KEY, peer.join()), ("grpc-timeout", "200m")
    )(peer, end=False),
    "no deadline": joining(prefixed(join_request()), ("grpc-timeout", "soon")),
    "some metadata": joining(prefixed(join_request()), ("a", "b" * 7000)),
}


@pytest.fixture(scope="module")
def two_servers():
    """One of each core, alike in all but that."""
    if core.why_python():
        pytest.skip(core.why_python())
    servers = {
        kind: new_server("127.0.0.1:0", STEP, ACTION, "{}", 8, 8, 0.05, core=kind)
        for kind in ("python", "native")
    }
    yield servers
    for server in servers.values():
        server.close(finished=False)


def run_on(server, ask):
    peer = Peer(server)
    try:
        outcome = ask(peer)
    finally:
        peer.socket.close()
    return re.sub(r"127\.0\.0\.1:\d+", "PLACE", repr(outcome))


# Refused by both, or neither, in words of their own as yet.
@pytest.mark.parametrize("name", BAD)
def test_both_servers_say_the_same(two_servers, name):
    outcomes = {kind: run_on(server, BAD[name]) for kind, server in two_servers.items()}
    assert outcomes["native"] == outcomes["python"]


# What needs no comparison: nobody else may suffer.


@pytest.mark.parametrize(
    "nonsense",
    [
        b"",
        b"\0",
        b"garbage, and more of it than a preface is long",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),  # a client of TLS
        PREFACE[:10],
        PREFACE + b"garbage",
        PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, b"\xff" * 50),
        PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 2, b"\x82"),
        PREFACE + frame(SETTINGS, 0, 0) + frame(DATA, 0, 1, b"no stream"),
        PREFACE + frame(SETTINGS, 0, 0) + b"\xff\xff\xff\0\0\0\0\0\1" + bytes(1000),
        PREFACE + frame(SETTINGS, 0, 0) + frame(CONTINUATION, END_HEADERS, 1, b"\x82"),
        PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW_UPDATE, 0, 0, bytes(4)),
        PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, 0, 0, bytes(5)),
    ],
    ids=range(14),
)
@pytest.mark.parametrize("how", ["close", "reset"])
def test_nonsense_disturbs_nobody(make_server, make_learner, make_peer, nonsense, how):
    server = make_server()
    make_learner(server)
    peer = make_peer(server)
    number = peer.act(0, 1)
    stranger = make_peer(server, starts=False)
    with contextlib.suppress(ConnectionError):
        stranger.socket.sendall(nonsense)
    stranger.socket.settimeout(0.02)
    with contextlib.suppress(TimeoutError, ConnectionError):
        stranger.socket.recv(1000)
    stranger.reset() if how == "reset" else stranger.socket.close()
    peer.send(number, prefixed(STEP.encode(some_rows([0]))))
    (answer,) = peer.answer(number)
    assert ACTION.decode(answer)[0].tolist() == [0]
    make_peer(server).act(1, 1)


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_what_is_no_post_is_not_served(make_server, make_peer, method):
    outcome = joining(prefixed(join_request()), method=method)(make_peer(make_server()))
    assert outcome in {("reset", 2), ("http", "405")}


def test_a_message_may_be_split_at_every_byte(make_server, make_learner, make_peer):
    server = make_server()
    learner = make_learner(server)
    peer = make_peer(server)
    number = peer.act(2, 3)
    message = prefixed(STEP.encode(some_rows([2, 3, 4])))
    for place in range(1, len(message)):
        peer.send(number, message[:place])
        time.sleep(0.001)
        peer.send(number, message[place:])
        peer.answer(number, place)
    for answer in peer.answer(number, len(message) - 1):
        assert ACTION.decode(answer)[0].tolist() == [20, 30, 40]
    for place in range(len(message)):
        peer.send(number, message[place : place + 1])
    peer.answer(number, len(message))
    assert len(learner.rows(3)) == len(message)


def test_frames_may_be_split_at_every_byte(make_server, make_learner, make_peer):
    """From the preface on, through headers: whatever TCP makes of it."""
    server = make_server()
    make_learner(server)
    lease = make_peer(server).join()
    peer = make_peer(server, starts=False)
    peer.streams[1] = Stream()
    block = peer.headers(protocol.ACT, (protocol.LEASE_KEY, lease))
    sent = (
        PREFACE
        + frame(SETTINGS, 0, 0)
        + frame(HEADERS, END_HEADERS, 1, block)
        + frame(DATA, 0, 1, prefixed(STEP.encode(some_rows([0]))))
    )
    for place in range(len(sent)):
        peer.socket.sendall(sent[place : place + 1])
        time.sleep(0.0005)
    assert len(peer.answer(1)) == 1


@pytest.mark.parametrize("end", ["close", "reset", "RST_STREAM"])
@pytest.mark.parametrize("place", [3, 5, 9, 30, -1])
def test_an_end_in_the_middle_of_a_message_drops_nothing_of_others(
    make_server, make_peer, eventually, end, place
):
    server = make_server(batch_timeout_secs=NEVER)
    good, bad = make_peer(server), make_peer(server)
    good_number, bad_number = good.act(0, 2), bad.act(2, 2)
    bad.send(bad_number, prefixed(STEP.encode(some_rows([2, 3])))[:place])
    good.send(good_number, prefixed(STEP.encode(some_rows([0, 1]))))
    assert server.next_batch(0.05) is None
    if end == "close":
        bad.socket.close()
    elif end == "reset":
        bad.reset()
    else:
        bad.socket.sendall(frame(RST_STREAM, 0, bad_number, struct.pack(">I", 8)))
    batch = server.next_batch(10)
    assert batch.columns[0][: batch.size].tolist() == [0, 1]
    np.testing.assert_array_equal(batch.restarted, [True, True])
    server.reply(batch, [np.zeros(2, np.int32)])
    assert len(good.answer(good_number)) == 1
    eventually(lambda: server.missing_env_ids() == [2, 3, 4, 5, 6, 7])
    make_peer(server).act(2, 2)


@pytest.mark.parametrize("place", [3, 5, 9, 30, -1])
def test_a_slow_message_delays_others_to_the_deadline_only(make_server, make_peer, place):
    """And is not lost."""
    server = make_server(batch_timeout_secs=0.1)
    slow, good = make_peer(server), make_peer(server)
    slow_number, good_number = slow.act(2, 2), good.act(0, 2)
    message = prefixed(STEP.encode(some_rows([2, 3])))
    slow.send(slow_number, message[:place])
    for step_type in (StepType.FIRST, StepType.MID):
        good.send(good_number, prefixed(STEP.encode(some_rows([0, 1], step_type))))
        start = time.monotonic()
        batch = server.next_batch(10)
        assert time.monotonic() - start < 5
        assert batch.columns[0][: batch.size].tolist() == [0, 1]
        server.reply(batch, [batch.columns[0] * 10])
        good.answer(good_number, step_type + 1)
    slow.send(slow_number, message[place:])
    batch = server.next_batch(10)
    assert batch.columns[0][: batch.size].tolist() == [2, 3]
    np.testing.assert_array_equal(batch.columns[4][:2], np.zeros((2, 4)))
    server.reply(batch, [batch.columns[0] * 10])
    (answer,) = slow.answer(slow_number)
    assert ACTION.decode(answer)[0].tolist() == [20, 30]


def test_pings_are_answered(make_server, make_peer):
    peer = make_peer(make_server())
    peer.join()
    for data in (b"12345678", bytes(8), b"\xff" * 8):
        peer.socket.sendall(frame(PING, 0, 0, data))
    until = time.monotonic() + 10
    while len(peer.pongs) < 3:
        assert time.monotonic() < until
        peer.read()
    assert peer.pongs == [b"12345678", bytes(8), b"\xff" * 8]


def test_a_peer_that_never_reads_its_answers_holds_up_nobody(make_server, make_peer, eventually):
    """Neither the others nor the learner, nor the server's end."""
    wide = ArraySpec((1 << 20,), "uint8")
    server = make_server(action=wide, batch_timeout_secs=0.05)
    layout = action_layout(wide)
    deaf, good = make_peer(server), make_peer(server)
    fields = {"action_layout": layout.to_json()}
    numbers = []
    for peer, env_id in ((deaf, 0), (good, 1)):
        lease = peer.join(env_id, 1, **fields)
        number = peer.open(protocol.ACT, (protocol.LEASE_KEY, lease))
        peer.wait(number, lambda stream: stream.headers)
        numbers.append(number)
    answers = layout.empty(8)
    for step in range(3):
        # Far more than fits into its window: most of the first answer stays with the server.
        step_type = StepType.MID if step else StepType.FIRST
        deaf.send(numbers[0], prefixed(STEP.encode(some_rows([0], step_type))))
        good.send(numbers[1], prefixed(STEP.encode(some_rows([1], step_type))))
        ids = []
        while 1 not in ids:
            batch = server.next_batch(10)
            ids = batch.columns[0][: batch.size].tolist()
            server.reply(batch, answers)
        for window in (0, numbers[1]):
            good.socket.sendall(frame(WINDOW_UPDATE, 0, window, struct.pack(">I", 2 << 20)))
        assert len(good.answer(numbers[1], step + 1)) == step + 1
    start = time.monotonic()
    server.close(finished=True)
    assert time.monotonic() - start < 4


def test_a_window_that_opens_late_gets_the_whole_answer(make_server, make_peer):
    wide = ArraySpec((1 << 18,), "uint8")
    server = make_server(action=wide)
    layout = action_layout(wide)
    peer = make_peer(server)
    lease = peer.join(0, 1, action_layout=layout.to_json())
    number = peer.open(protocol.ACT, (protocol.LEASE_KEY, lease))
    peer.send(number, prefixed(STEP.encode(some_rows([0]))))
    batch = server.next_batch(10)
    answer = np.random.default_rng(0).integers(0, 256, (1, 1 << 18), np.uint8)
    server.reply(batch, [answer])
    while len(peer.streams[number].data) < 1 << 18:
        for window in (0, number):
            peer.socket.sendall(frame(WINDOW_UPDATE, 0, window, struct.pack(">I", 10_000)))
        peer.read()
    (message,) = peer.answer(number)
    np.testing.assert_array_equal(layout.decode(message)[0], answer)


def test_too_much_metadata_ends_its_own_call_only(make_server, make_peer, server_core):
    server = make_server()
    good, bad = make_peer(server), make_peer(server)
    number = good.act()
    outcome = joining(prefixed(join_request()), ("a", "b" * 40_000))(bad)
    if server_core == "native":  # grpcio refuses by limits of its own, or not
        assert outcome[0] == 8
        assert "received metadata size exceeds" in outcome[1]
    assert not good.streams[number].is_over
    make_peer(server).act(1, 1)


def test_messages_ahead_of_their_turn_are_answered_in_order(make_server, make_learner, make_peer):
    server = make_server()
    learner = make_learner(server)
    peer = make_peer(server)
    number = peer.act(0, 4)
    messages = [STEP.encode(some_rows([env_id])) for env_id in (2, 0, 3, 1, 2, 0)]
    peer.send(number, b"".join(map(prefixed, messages)), end=True)
    stream = peer.wait(number)
    assert stream.outcome == (0, "")
    answers = [ACTION.decode(answer)[0].tolist() for answer in split(stream.data)]
    assert answers == [[20], [0], [30], [10], [20], [0]]
    assert len(learner.rows(2)) == 2


def test_many_streams_on_one_connection(make_server, make_learner, make_peer):
    server = make_server(num_envs=8)
    make_learner(server)
    peer = make_peer(server)
    numbers = [peer.act(env_id, 1) for env_id in range(8)]
    for env_id, number in enumerate(numbers):
        peer.send(number, prefixed(STEP.encode(some_rows([env_id]))))
    for env_id, number in reversed(list(enumerate(numbers))):
        (answer,) = peer.answer(number)
        assert ACTION.decode(answer)[0].tolist() == [10 * env_id]
