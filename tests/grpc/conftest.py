"""A server, clients and a learner's thread, all on real sockets.

Tests reach servers and clients through `make_server` and `make_client` only, and run for both cores
of each: in all four pairings, but in two where they are marked as `server_only`, and need a client
of any kind to ask with.
"""

import contextlib
import itertools
import queue
import threading
import time

import grpc
import numpy as np
import pytest

from seed_rl.grpc import core, protocol
from seed_rl.grpc.client import make_client as new_client
from seed_rl.grpc.codec import action_layout, step_layout
from seed_rl.grpc.server import ServerClosed
from seed_rl.grpc.server import make_server as new_server
from seed_rl.grpc.service_pb2 import JoinRequest, JoinResponse
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType

OBSERVATION = ArraySpec((4,), "uint8")
ACTION = ArraySpec((), "int32", 0, 1_000_000)


_NATIVE = pytest.mark.skipif(core.why_python() != "", reason=core.why_python())


def pytest_generate_tests(metafunc):
    ends = [name for name in ("server_core", "client_core") if name in metafunc.fixturenames]
    pairs = itertools.product(("python", "native"), repeat=len(ends))
    if metafunc.definition.get_closest_marker("server_only"):
        pairs = [pair for pair in pairs if len(set(pair)) == 1]
    if ends:
        metafunc.parametrize(
            ends, [pytest.param(*pair, marks=_NATIVE if "native" in pair else ()) for pair in pairs]
        )


class Learner:
    """Answers every row with 10 times its env id, and keeps what it saw."""

    def __init__(self, server):
        self.batches = []  # copies of (columns, restarted)
        self._server = server
        self._thread = threading.Thread(target=self._run)
        self._failure = None
        self._thread.start()

    def rows(self, env_id):
        """What the environment sent so far: a list of tuples of its fields."""
        return [
            tuple(column[row] for column in columns)
            for columns, _ in list(self.batches)
            for row in np.flatnonzero(columns[0] == env_id)
        ]

    def join(self):
        self._thread.join(10)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def _run(self):
        try:
            while True:
                batch = self._server.next_batch(1.0)
                if batch is None:
                    continue
                columns = [column[: batch.size].copy() for column in batch.columns]
                assert len(np.unique(columns[0])) == batch.size, "an env id is twice in a batch"
                self.batches.append((columns, batch.restarted.copy()))
                self._server.reply(batch, [columns[0] * 10])
        except ServerClosed:
            pass
        except BaseException as error:
            self._failure = error


class RawStream:
    """A client on bare grpcio, which sends whatever bytes it is given."""

    def __init__(self, address, lease):
        self._channel = grpc.insecure_channel(address)
        self._messages = queue.SimpleQueue()
        self._call = self._channel.stream_stream(protocol.ACT)(
            iter(self._messages.get, None), metadata=((protocol.LEASE_KEY, lease),), timeout=20
        )
        self._call.initial_metadata()

    def send(self, message):
        self._messages.put(message)

    def receive(self):
        return next(self._call)

    def exchange(self, message):
        self.send(message)
        return self.receive()

    def close(self):
        self._messages.put(None)
        self._channel.close()


@pytest.fixture
def make_server(server_core):
    """A function that starts a server of small rows; all are closed in the end."""
    servers = []

    def make(address="localhost:0", observation=OBSERVATION, action=ACTION, **options):
        defaults = {
            "description": '{"environment": "test"}',
            "num_envs": 8,
            "batch_size": 8,
            "batch_timeout_secs": 0.05,
        }
        server = new_server(
            address,
            step_layout(observation),
            action_layout(action),
            core=server_core,
            **{**defaults, **options},
        )
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.close(finished=False)


@pytest.fixture
def make_learner():
    learners = []

    def make(server):
        learners.append(Learner(server))
        return learners[-1]

    # Torn down before make_server would be, were it not for the server to be closed first.
    yield make
    for learner in learners:
        learner._server.close(finished=False)
        learner.join()


@pytest.fixture
def make_client(client_core):
    """A function that starts a client, and joins for `num_envs` environments if there are any."""
    clients = []

    def make(server, first_env_id=0, num_envs=0, observation=OBSERVATION, action=ACTION, **options):
        names = ("token", "name", "keepalive_secs")
        client = new_client(
            getattr(server, "address", server),
            **{name: options.pop(name) for name in names if name in options},
            core=client_core,
        )
        clients.append(client)
        if num_envs:
            client.join(
                first_env_id, num_envs, step_layout(observation), action_layout(action), **options
            )
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def raw_join():
    """A function that calls Join on bare grpcio, with the right arguments where none are given."""

    def join(server, **fields):
        request = JoinRequest(
            **{
                "protocol_version": protocol.PROTOCOL_VERSION,
                "name": "raw",
                "num_envs": 1,
                "step_layout": step_layout(OBSERVATION).to_json(),
                "action_layout": action_layout(ACTION).to_json(),
                **fields,
            }
        )
        with grpc.insecure_channel(server.address) as channel:
            call = channel.unary_unary(
                protocol.JOIN, JoinRequest.SerializeToString, JoinResponse.FromString
            )
            return call(request, timeout=10)

    return join


@pytest.fixture
def raw_stream(raw_join):
    """A function that joins and opens a stream on bare grpcio."""
    with contextlib.ExitStack() as stack:

        def make(server, first_env_id=0, num_envs=1, lease=None, **fields):
            if lease is None:
                lease = raw_join(
                    server, first_env_id=first_env_id, num_envs=num_envs, **fields
                ).lease
            stream = RawStream(server.address, lease)
            stack.callback(stream.close)
            return stream

        yield make


@pytest.fixture
def rows():
    """A function that makes columns of rows of these environments."""

    def make(env_ids, step_type=StepType.FIRST, observation=OBSERVATION):
        columns = step_layout(observation).empty(len(env_ids))
        columns[0][:] = env_ids
        columns[1][:] = step_type
        return columns

    return make


@pytest.fixture
def in_background():
    """A function that calls another in a thread; `result()` returns or raises what it did."""
    threads = []

    class Background:
        def __init__(self, function, *args, **kwargs):
            self._outcome = queue.SimpleQueue()
            self._thread = threading.Thread(
                target=self._run, args=(function, args, kwargs), daemon=True
            )
            self._thread.start()
            threads.append(self._thread)

        def _run(self, function, args, kwargs):
            try:
                self._outcome.put((function(*args, **kwargs), None))
            except BaseException as error:
                self._outcome.put((None, error))

        def is_done(self):
            return not self._outcome.empty()

        def result(self, timeout_secs=20.0):
            value, error = self._outcome.get(timeout=timeout_secs)
            if error is not None:
                raise error
            return value

    return Background


@pytest.fixture
def eventually():
    """A function that waits until a condition holds, and fails after a while."""

    def wait(condition, timeout_secs=20.0):
        until = time.monotonic() + timeout_secs
        while not condition():
            assert time.monotonic() < until, "waited in vain"
            time.sleep(0.01)

    return wait
