"""When batches close, and what is in them."""

import time

import numpy as np
import pytest

from seed_rl.types import StepType

pytestmark = pytest.mark.server_only
NEVER = 60.0  # a batch timeout that no test waits for


def test_a_full_batch_closes_at_once(make_server, make_client, in_background, rows):
    server = make_server(batch_size=4, batch_timeout_secs=NEVER)
    clients = [make_client(server, first, 2) for first in (0, 2, 4)]
    for index, client in enumerate(clients[:2]):
        in_background(client.act, rows([2 * index, 2 * index + 1]))
    batch = server.next_batch(10)
    assert sorted(batch.columns[0][: batch.size]) == [0, 1, 2, 3]


def test_a_message_that_does_not_fit_starts_the_next_batch(
    make_server, make_client, in_background, rows, eventually
):
    server = make_server(batch_size=4, batch_timeout_secs=NEVER)
    first, second, _ = (
        make_client(server, start, size) for start, size in ((0, 3), (3, 2), (5, 1))
    )
    in_background(first.act, rows([0, 1, 2]))
    assert server.next_batch(0.2) is None
    in_background(second.act, rows([3, 4]))
    batch = server.next_batch(10)
    assert batch.columns[0][: batch.size].tolist() == [0, 1, 2]
    assert server.next_batch(0.2) is None


def test_a_batch_closes_when_every_actor_has_a_row_in_it(
    make_server, make_client, in_background, rows
):
    """Case 40: the learner was told of 8 environments, and only 3 are there."""
    server = make_server(batch_timeout_secs=NEVER)
    one, two = make_client(server, 0, 2), make_client(server, 6, 1)
    for _ in range(3):
        answers = [in_background(one.act, rows([0, 1])), in_background(two.act, rows([6]))]
        batch = server.next_batch(10)
        assert sorted(batch.columns[0][: batch.size]) == [0, 1, 6]
        server.reply(batch, [np.zeros(8, np.int32)])
        for answer in answers:
            answer.result()
    assert server.missing_env_ids() == [2, 3, 4, 5, 7]
    # An actor may send fewer rows than it has environments.
    in_background(one.act, rows([1], StepType.MID))
    in_background(two.act, rows([6], StepType.MID))
    assert server.next_batch(10).size == 2


def test_a_batch_closes_when_the_last_missing_actor_leaves(
    make_server, make_client, in_background, rows
):
    server = make_server(batch_timeout_secs=NEVER)
    stays, leaves = make_client(server, 0, 1), make_client(server, 1, 1)
    in_background(stays.act, rows([0]))
    assert server.next_batch(0.2) is None
    leaves.close()
    assert server.next_batch(10).size == 1


def test_a_batch_closes_at_its_deadline(make_server, make_client, in_background, rows):
    """Case 73: an environment that hangs blocks nobody."""
    server = make_server(batch_timeout_secs=0.2)
    client, _hanging = make_client(server, 0, 1), make_client(server, 1, 1)
    in_background(client.act, rows([0]))
    assert server.next_batch(10).size == 1
    assert server.next_batch(0.01) is None


def test_actors_silent_for_long_are_not_waited_for(
    make_server, make_client, in_background, rows, monkeypatch
):
    """Case 73: nor does it cost the others a timeout at every step."""
    monkeypatch.setattr("seed_rl.grpc.admission.WAITED_FOR_SECS", 1.5)
    server = make_server(batch_timeout_secs=NEVER)
    client, hanging = make_client(server, 0, 1), make_client(server, 1, 1)
    for _ in range(3):
        answer = in_background(client.act, rows([0]))
        batch = server.next_batch(10)
        assert batch.size == 1
        server.reply(batch, [np.zeros(1, np.int32)])
        answer.result()
    # Once it is back, it counts again.
    for step_type in (StepType.FIRST, StepType.MID):
        answers = [in_background(hanging.act, rows([1], step_type))]
        assert server.next_batch(0.2) is None
        answers.append(in_background(client.act, rows([0], StepType.MID)))
        batch = server.next_batch(10)
        assert batch.size == 2
        server.reply(batch, [np.zeros(2, np.int32)])
        for answer in answers:
            answer.result()


def test_the_log_names_an_actor_that_is_silent(
    make_server, make_client, caplog, monkeypatch, eventually
):
    """Case 73."""
    monkeypatch.setattr("seed_rl.grpc.admission.WARN_OF_SILENCE_SECS", 0.3)
    server = make_server()
    make_client(server, 2, 3, name="sleeper")
    eventually(lambda: "has sent nothing for" in caplog.text)
    assert "actor sleeper at " in caplog.text
    assert "with environments 2..4 has sent nothing" in caplog.text


def test_rows_wait_for_a_busy_learner_in_one_batch(
    make_server, make_client, in_background, rows, eventually
):
    server = make_server(batch_timeout_secs=0.001)
    clients = [make_client(server, env_id, 1) for env_id in range(4)]
    for env_id, client in enumerate(clients[:3]):
        in_background(client.act, rows([env_id]))
        time.sleep(0.1)
    assert server.next_batch(10).size == 3


def test_batches_of_several_threads_are_apart(make_server, make_client, in_background, rows):
    """A batch's arrays are valid until its own thread asks for the next one."""
    server = make_server(batch_size=1)
    clients = [make_client(server, env_id, 1) for env_id in range(3)]
    answers = [in_background(client.act, rows([i])) for i, client in enumerate(clients)]
    batches = [in_background(server.next_batch, 10).result() for _ in clients]
    ids = [batch.columns[0][0] for batch in batches]
    assert sorted(ids) == [0, 1, 2]
    for batch in reversed(batches):
        server.reply(batch, [batch.columns[0] * 10])
    assert [answer.result()[0].tolist() for answer in answers] == [[0], [10], [20]]


def test_reply_refuses_actions_of_another_kind(make_server, make_client, in_background, rows):
    server = make_server()
    client = make_client(server, 0, 2)
    answer = in_background(client.act, rows([0, 1]))
    batch = server.next_batch(10)
    with pytest.raises(ValueError, match=r"action: saw int64\[2\], wanted int32\[2\]"):
        server.reply(batch, [np.zeros(2, np.int64)])
    with pytest.raises(ValueError, match=r"action: saw int32\[1\], wanted int32\[2\]"):
        server.reply(batch, [np.zeros(1, np.int32)])
    with pytest.raises(ValueError, match="saw 0 columns, wanted 1: action"):
        server.reply(batch, [])
    server.reply(batch, [np.zeros(2, np.int32)])
    answer.result()
    with pytest.raises(RuntimeError, match="replied to twice"):
        server.reply(batch, [np.zeros(2, np.int32)])


def test_a_new_actors_rows_never_share_a_batch_with_the_old_ones(
    make_server, make_client, in_background, rows, eventually
):
    """And its first row of each environment is marked as the first of a run."""
    server = make_server(batch_timeout_secs=NEVER)
    make_client(server, 7, 1)  # says nothing, so that batches stay open
    old = make_client(server, 0, 2)
    in_background(old.act, rows([0, 1]))
    assert server.next_batch(0.2) is None
    old.close()
    eventually(lambda: 0 in server.missing_env_ids())
    new = make_client(server, 0, 2)
    in_background(new.act, rows([1]))
    batches = [server.next_batch(10), server.next_batch(10)]
    assert [batch.size for batch in batches] == [2, 1]
    assert batches[1].columns[0][0] == 1
    assert [batch.restarted.tolist() for batch in batches] == [[True, True], [True]]
    for batch in batches:  # an answer to nobody is no error
        server.reply(batch, [np.zeros(batch.size, np.int32)])
