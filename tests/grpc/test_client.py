import time

import numpy as np
import pytest

from seed_rl.grpc.client import Disconnected
from seed_rl.types import StepType


def test_nobody_there_is_told_at_once(make_client, tmp_path):
    for address in ("localhost:1", f"unix:{tmp_path}/none"):
        start = time.monotonic()
        with pytest.raises(Disconnected, match=f"no connection to the learner at {address}"):
            make_client(address).describe()
        assert time.monotonic() - start < 5


def test_act_gives_up_at_its_deadline(make_server, make_client, rows):
    server = make_server()
    client = make_client(server, 0, 1)
    with pytest.raises(Disconnected, match=r"didn't answer within 0.3 s"):
        client.act(rows([0]), timeout_secs=0.3)


def test_rows_of_another_layout_are_not_sent(make_server, make_learner, make_client, rows):
    """Case 31: the actor names the field, and can go on."""
    server = make_server()
    make_learner(server)
    client = make_client(server, 0, 1)
    columns = rows([0])
    with pytest.raises(ValueError, match=r"reward: saw float64\[1\], wanted float32\[1\]"):
        client.act([*columns[:2], np.zeros(1), *columns[3:]])
    client.act(columns)


def test_act_needs_a_lease(make_server, make_client, rows):
    client = make_client(make_server())
    for act in (client.act, client.send):
        with pytest.raises(RuntimeError, match="join before acting"):
            act(rows([0]))


def test_sending_waits_for_nothing(make_server, make_client, rows):
    """One thread keeps two streams busy, as an actor with two groups of environments does."""
    server = make_server()
    one, two = make_client(server, 0, 1), make_client(server, 1, 2)
    for step_type in (StepType.FIRST, StepType.MID):
        columns = rows([0], step_type)
        one.send(columns)
        columns[0][:] = 99  # it was copied
        two.send(rows([1, 2], step_type))
        batch = server.next_batch(10)
        assert sorted(batch.columns[0][: batch.size]) == [0, 1, 2]
        server.reply(batch, [batch.columns[0] * 10])
        assert two.receive()[0].tolist() == [10, 20]
        assert one.receive()[0].tolist() == [0]


def test_one_message_is_under_way_at_a_time(make_server, make_learner, make_client, rows):
    server = make_server()
    make_learner(server)
    client = make_client(server, 0, 1)
    with pytest.raises(RuntimeError, match="send before receiving"):
        client.receive()
    client.send(rows([0]))
    with pytest.raises(RuntimeError, match="receive the answer before sending again"):
        client.send(rows([0]))
    client.receive()
    client.act(rows([0], StepType.MID))


def test_a_learner_that_comes_later_is_found(make_server, make_learner, make_client, rows):
    """A failed attempt leaves no back-off behind for the next client."""
    server = make_server()
    address = server.address
    server.close(finished=False)
    with pytest.raises(Disconnected):
        make_client(address).describe()
    server = make_server(address)
    make_learner(server)
    make_client(address, 0, 1).act(rows([0]))


def test_close_ends_the_stream_for_the_server(make_server, make_client, eventually):
    server = make_server()
    client = make_client(server, 0, 8)
    eventually(lambda: not server.missing_env_ids())
    client.close()
    client.close()
    eventually(lambda: server.missing_env_ids())
