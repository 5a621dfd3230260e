"""How a server ends, by itself and with all its actors."""

import os
import pathlib
import threading
import time

import numpy as np
import pytest

from seed_rl.grpc.client import Disconnected, Finished, ShuttingDown
from seed_rl.grpc.server import ServerClosed

NEVER = 60.0  # a batch timeout that no test waits for


@pytest.mark.parametrize("finished", [True, False])
def test_close_ends_all_calls_in_time(make_server, make_client, in_background, rows, finished):
    """Case 30: with streams of which none, some and all wait for a batch."""
    outcome = Finished if finished else ShuttingDown
    for num_waiting in (0, 1, 4):
        server = make_server(batch_size=4, batch_timeout_secs=NEVER)
        clients = [make_client(server, env_id, 1) for env_id in range(4)]
        answers = [
            in_background(client.act, rows([env_id]))
            for env_id, client in enumerate(clients[:num_waiting])
        ]
        waiting = in_background(server.next_batch, NEVER)
        if num_waiting == 4:
            waiting.result()
        time.sleep(0.2)
        assert not any(answer.is_done() for answer in answers)
        start = time.monotonic()
        server.close(finished)
        for answer in answers:
            with pytest.raises(outcome):
                answer.result(2)
        if num_waiting < 4:
            with pytest.raises(ServerClosed):
                waiting.result(2)
        assert time.monotonic() - start < 2
        for env_id, client in enumerate(clients[num_waiting:], num_waiting):
            with pytest.raises(outcome):
                client.act(rows([env_id]))
        server.close(finished)


def test_calls_after_close_say_so(make_server, make_client, in_background, rows):
    server = make_server()
    client = make_client(server, 0, 1)
    in_background(client.act, rows([0]))
    batch = server.next_batch(10)
    server.close(finished=False)
    with pytest.raises(ServerClosed):
        server.reply(batch, [np.zeros(1, np.int32)])
    with pytest.raises(ServerClosed):
        server.next_batch(0)


def test_close_leaves_no_thread_and_no_socket(make_server, make_client, tmp_path):
    threads = threading.active_count()
    server = make_server(f"unix:{tmp_path}/p")
    make_client(server, 0, 1).close()
    server.close(finished=True)
    assert not os.path.exists(tmp_path / "p")
    assert not any(thread.name == "grpc server" for thread in threading.enumerate())
    names = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
    assert "seed_rl epoll\n" not in names
    assert threading.active_count() <= threads + 2  # grpcio's own


@pytest.mark.server_only
@pytest.mark.parametrize("place", ["core", "codec.RowCheck.check", "leases.Leases.grant"])
def test_a_failure_of_the_servers_thread_reaches_the_learner(
    make_server, make_client, in_background, rows, monkeypatch, server_core, place
):
    """Case 70."""
    if place == "core":
        places = {"python": "batching.Batcher.add", "native": "native_server.NativeServer._accept"}
        place = places[server_core]
    columns = rows([0])
    if place.startswith("codec"):
        columns[2][:] = np.nan  # only then are they looked at in Python

    def fail(*_):
        raise ArithmeticError("in the server's thread")

    monkeypatch.setattr(f"seed_rl.grpc.{place}", fail)
    server = make_server()
    waiting = in_background(server.next_batch, NEVER)
    with pytest.raises(Disconnected):
        make_client(server, 0, 1).act(columns)
    with pytest.raises(ArithmeticError, match="in the server's thread"):
        waiting.result(5)
    with pytest.raises(ArithmeticError, match="in the server's thread"):
        server.next_batch(0)
