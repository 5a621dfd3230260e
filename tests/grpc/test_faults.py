"""Actors that are killed, stopped or unplugged while the learner waits for them."""

import itertools
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from seed_rl.grpc.client import Disconnected
from seed_rl.grpc.interface import KEEPALIVE_SECS
from seed_rl.types import StepType

ACTOR = """
import sys
from seed_rl.grpc.client import make_client

client = make_client(sys.argv[1], name="victim", core=sys.argv[2])
description = client.describe()
client.join(0, 2, description.step_layout, description.action_layout)
columns = description.step_layout.empty(2)
columns[0][:] = [0, 1]
while True:
    client.act(columns)
    print("acted", flush=True)
"""


@pytest.fixture
def start_actor(client_core):
    """A function that starts a process of two environments and waits for its first actions."""
    processes = []

    def start(server):
        process = subprocess.Popen(
            [sys.executable, "-c", ACTOR, server.address, client_core],
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout.readline() == "acted\n"
        # From now on it mustn't block on a full pipe.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.server_only
@pytest.mark.parametrize("address", ["localhost:0", "unix:{}/p"])
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_actor_is_dropped_and_replaced(
    make_server, make_learner, make_client, start_actor, rows, tmp_path, caplog, fault, address
):
    """Case 47 a and b: others go on, and the log names the actor that was dropped."""
    server = make_server(address.format(tmp_path), keepalive_secs=1.0)
    learner = make_learner(server)
    other = make_client(server, 2, 1)
    other.act(rows([2]))
    start_actor(server).send_signal(fault)
    start = time.monotonic()
    while 0 not in server.missing_env_ids():
        other.act(rows([2], StepType.MID))
        assert time.monotonic() - start < 15
    assert "lost actor victim at " in caplog.text
    assert "with environments 0..1: " in caplog.text
    make_client(server, 0, 2).act(rows([0, 1]))
    other.act(rows([2], StepType.MID))
    assert sum(restarted.sum() for _, restarted in learner.batches) == 5


def test_a_stopped_actor_that_goes_on_has_to_join_again(
    make_server, make_learner, make_client, start_actor, eventually
):
    """Case 47 b."""
    server = make_server(keepalive_secs=1.0)
    make_learner(server)
    process = start_actor(server)
    process.send_signal(signal.SIGSTOP)
    eventually(lambda: 0 in server.missing_env_ids())
    make_client(server, 0, 2)
    process.send_signal(signal.SIGCONT)
    assert process.wait(20) != 0  # the tests' actor ends with Disconnected
    assert 0 not in server.missing_env_ids()


class _Wire(threading.Thread):
    """Passes bytes between a client and a server until it is cut, without closing anything."""

    def __init__(self, server_address):
        super().__init__(daemon=True)
        host, _, port = server_address.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_cut = threading.Event()
        self._ends = []

    def run(self):
        client, _ = self._listener.accept()
        server = socket.create_connection(self._target)
        self._ends = [client, server]
        for source, target in itertools.permutations(self._ends):
            threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source, target):
        while data := source.recv(65536):
            if self.is_cut.is_set():
                return
            target.sendall(data)

    def close(self):
        for end in (self._listener, *self._ends):
            end.close()


def test_an_unplugged_actor_is_dropped_by_both_ends(
    make_server, make_learner, make_client, rows, eventually, caplog
):
    """Case 47 c: packets vanish, and nobody says goodbye."""
    server = make_server(keepalive_secs=1.0)
    make_learner(server)
    wire = _Wire(server.address)
    wire.start()
    client = make_client(wire.address, 0, 2, name="unplugged", keepalive_secs=1.0)
    client.act(rows([0, 1]))
    wire.is_cut.set()
    with pytest.raises(Disconnected):
        client.act(rows([0, 1], StepType.MID))
    eventually(lambda: 0 in server.missing_env_ids())
    assert "lost actor unplugged at " in caplog.text
    make_client(server, 0, 2).act(rows([0, 1]))
    wire.close()


def test_by_default_the_dead_are_noticed_within_30_secs():
    """Case 47: the tests above shorten these times."""
    assert 2 * KEEPALIVE_SECS <= 25


@pytest.mark.slow
@pytest.mark.server_only
def test_a_stopped_actor_is_dropped_within_30_secs(make_server, make_learner, start_actor):
    """Case 47 b, with the times that users have."""
    server = make_server()
    make_learner(server)
    start_actor(server).send_signal(signal.SIGSTOP)
    start = time.monotonic()
    while 0 not in server.missing_env_ids():
        assert time.monotonic() - start < 30
        time.sleep(0.1)


def test_idle_streams_live_longer_than_any_ping(make_server, make_learner, make_client, rows):
    """Pings are no reason to end a stream, however seldom it is used."""
    server = make_server(keepalive_secs=0.3)
    make_learner(server)
    client = make_client(server, 0, 1, keepalive_secs=0.3)
    client.act(rows([0]))
    time.sleep(2)
    client.act(rows([0], StepType.MID))
