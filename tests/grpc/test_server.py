"""What a server does with its clients, on real sockets."""

import logging
import os
import socket
import threading
import time

import grpc
import numpy as np
import pytest

from seed_rl.grpc.client import Disconnected, Finished, RangeTaken, Refused
from seed_rl.grpc.codec import step_layout
from seed_rl.grpc.server import ServerClosed
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType

WIDER = step_layout(ArraySpec((8,), "uint8"))
AS_TWO = step_layout(ArraySpec((21,), "uint8"))
NEVER = 60.0  # a batch timeout that no test waits for


def test_an_actor_gets_the_description_and_actions(make_server, make_learner, make_client, rows):
    server = make_server(description='{"seed": 3}')
    learner = make_learner(server)
    client = make_client(server)
    description = client.describe()
    assert description.values == {"seed": 3}
    assert server.missing_env_ids() == list(range(8))
    client.join(2, 3, description.step_layout, description.action_layout)
    for step_type in (StepType.FIRST, StepType.MID, StepType.TERMINATED):
        (actions,) = client.act(rows([2, 3, 4], step_type))
        assert actions.dtype == np.int32
        assert actions.flags.writeable
        assert actions.tolist() == [20, 30, 40]
    assert client.act(rows([4], StepType.MID))[0].tolist() == [40]
    assert server.missing_env_ids() == [0, 1, 5, 6, 7]
    assert [row[1] for row in learner.rows(4)] == [0, 1, 2, 1]
    assert server.stats.rows == 10
    assert server.stats.batches == 4
    assert server.stats.fill == 10 / 32


def test_structured_observations_and_actions_arrive_whole(make_server, make_client, in_background):
    observation = {"image": ArraySpec((3, 2), "uint8"), "pose": ArraySpec((2,), "float32")}
    action = {"move": ArraySpec((2,), "float32"), "use": ArraySpec((), "int32", 0, 3)}
    server = make_server(observation=observation, action=action)
    client = make_client(server, 0, 2, observation, action)
    columns = step_layout(observation).empty(2)
    columns[0][:] = [1, 0]
    columns[4][:] = np.arange(12).reshape(2, 3, 2)
    columns[5][:] = [[0.5, -1], [2, 3]]
    answer = in_background(client.act, columns)
    batch = server.next_batch(10)
    assert batch.size == 2
    for column, sent in zip(batch.columns, columns, strict=True):
        assert len(column) == 8
        np.testing.assert_array_equal(column[:2], sent)
    # As many rows as the batch has, or as it could have.
    server.reply(batch, [np.float32([[1, 2], [3, 4]]), np.arange(8, dtype=np.int32)])
    move, use = answer.result()
    assert move.tolist() == [[1, 2], [3, 4]]
    assert use.tolist() == [0, 1]


def test_columns_may_be_written_to_after_act(make_server, make_client, in_background, rows):
    """Case 101: an environment that reuses one numpy array."""
    server = make_server()
    client = make_client(server, 0, 1)
    columns = rows([0])
    seen = []
    for value in range(5):
        columns[4][:] = value
        answer = in_background(client.act, columns)
        batch = server.next_batch(10)
        columns[4][:] = 99
        seen.append(batch.columns[4][0].tolist())
        server.reply(batch, [np.zeros(1, np.int32)])
        answer.result()
    assert seen == [[value] * 4 for value in range(5)]


# When batches close.


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
    monkeypatch.setattr("seed_rl.grpc.admission.WAITED_FOR_SECS", 3.0)
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


# Who may join.


def test_a_second_actor_of_the_same_environments_is_refused(
    make_server, make_learner, make_client, rows
):
    """Case 6: the second one is told the range and the holder; the first one goes on."""
    server = make_server()
    make_learner(server)
    first = make_client(server, 0, 4, name="first:1")
    first.act(rows([0, 1, 2, 3]))
    for start, size in ((0, 4), (3, 2), (0, 8), (2, 1)):
        with pytest.raises(RangeTaken) as error:
            make_client(server, start, size)
        assert "0..3 are held by actor first:1 at " in str(error.value)
    assert first.act(rows([0, 1, 2, 3]))[0].tolist() == [0, 10, 20, 30]
    make_client(server, 4, 4).act(rows([4, 5, 6, 7]))


def test_a_range_is_free_again_when_its_actor_has_left(make_server, make_client, eventually):
    server = make_server()
    make_client(server, 0, 4).close()
    eventually(lambda: server.missing_env_ids() == list(range(8)))
    make_client(server, 0, 4)


def test_an_actor_that_comes_back_replaces_itself(
    make_server, make_learner, make_client, rows, caplog
):
    """Its old connection may take half a minute to be noticed as dead."""
    server = make_server()
    learner = make_learner(server)
    old = make_client(server)
    lease = old.join(0, 2, step_layout(ArraySpec((4,), "uint8")), old.describe().action_layout)
    old.act(rows([0, 1]))
    new = make_client(server, 0, 2, previous_lease=lease)
    new.act(rows([0, 1]))
    with pytest.raises(Disconnected, match="this lease was replaced"):
        old.act(rows([0, 1], StepType.MID))
    new.act(rows([0, 1], StepType.MID))
    assert [restarted.tolist() for _, restarted in learner.batches] == [
        [True, True],
        [True, True],
        [False, False],
    ]


def test_a_lease_that_is_not_opened_is_given_up(
    make_server, make_client, raw_join, raw_stream, monkeypatch
):
    monkeypatch.setattr("seed_rl.grpc.leases.OPEN_WITHIN_SECS", 0.3)
    server = make_server()
    lease = raw_join(server, num_envs=2).lease
    with pytest.raises(RangeTaken):
        make_client(server, 1, 1)
    time.sleep(0.4)
    make_client(server, 1, 1)
    with pytest.raises(grpc.RpcError) as error:
        raw_stream(server, lease=lease).receive()
    assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_lease_serves_one_stream(make_server, raw_join, raw_stream, rows, make_learner):
    server = make_server()
    make_learner(server)
    lease = raw_join(server).lease
    message = step_layout(ArraySpec((4,), "uint8")).encode(rows([0]))
    first = raw_stream(server, lease=lease)
    first.exchange(message)
    for wrong in (lease, "", "0" * 32):
        with pytest.raises(grpc.RpcError) as error:
            raw_stream(server, lease=wrong).receive()
        assert error.value.code() == grpc.StatusCode.NOT_FOUND
    first.exchange(message)


def test_ids_beyond_the_learners_are_refused(make_server, make_client):
    server = make_server()
    with pytest.raises(Refused, match=r"asks for environments 6\.\.8, the learner has 0\.\.7"):
        make_client(server, 6, 3)
    with pytest.raises(Refused, match=r"environments 4294967295, the learner has 0\.\.7"):
        make_client(server, 2**32 - 1, 1)


def test_an_actor_larger_than_a_batch_is_refused(make_server, make_client):
    """Case 24."""
    server = make_server(batch_size=2)
    with pytest.raises(Refused, match=r"3 environments doesn't fit into .* batches of 2"):
        make_client(server, 0, 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"observation": ArraySpec((5,), "uint8")},
            "saw observation uint8[5], wanted observation uint8[4]",
        ),
        (
            {"observation": {"image": ArraySpec((4,), "uint8")}},
            "saw observation/image uint8[4], wanted observation uint8[4]",
        ),
        (
            {"action": ArraySpec((), "int32", 0, 5)},
            "saw action int32[] in [0, 5], wanted action int32[] in [0, 1e+06]",
        ),
        ({"total_num_envs": 16}, "num_envs: the actor has 16, the learner 8"),
    ],
)
def test_what_differs_is_refused_with_both_values(make_server, make_client, options, words):
    """Case 35."""
    server = make_server()
    with pytest.raises(Refused) as error:
        make_client(server, 0, 1, **options)
    assert words in str(error.value)
    make_client(server, 0, 1, total_num_envs=8)


def test_another_protocol_version_is_refused(make_server, raw_join):
    """Case 35."""
    server = make_server()
    for num_envs in (0, 1):
        with pytest.raises(grpc.RpcError) as error:
            raw_join(server, num_envs=num_envs, protocol_version=99)
        assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "the actor has 99, the learner 1" in error.value.details()


def test_a_layout_that_is_none_is_refused(make_server, raw_join):
    server = make_server()
    for text in ("", "nonsense", '[["a", {"array": {"shape": [1], "dtype": "what"}}]]'):
        with pytest.raises(grpc.RpcError) as error:
            raw_join(server, step_layout=text)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "step_layout" in error.value.details()


def test_long_refusals_fit_into_a_status(make_server, make_client):
    server = make_server()
    observation = {f"sensor {i:04}": ArraySpec((1,), "uint8") for i in range(1000)}
    server = make_server(observation=observation)
    more = {**observation, "one more": ArraySpec((1,), "uint8")}
    with pytest.raises(Refused, match=r"saw 1005 fields|saw observation/one more"):
        make_client(server, 0, 1, observation=more)
    fewer = dict(list(observation.items())[:-1])
    with pytest.raises(Refused, match="saw 1003 fields"):
        make_client(server, 0, 1, observation=fewer)


@pytest.mark.parametrize("token", ["", "wrong", "secre", "sécret"])
def test_actors_without_the_token_are_refused(
    make_server, make_client, raw_join, raw_stream, token
):
    server = make_server(token="secret")
    if token.isascii():
        with pytest.raises(Refused, match="the token is missing or wrong"):
            make_client(server, token=token).describe()
    with pytest.raises(grpc.RpcError) as error:
        raw_join(server)
    assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.RpcError) as error:
        raw_stream(server, lease="any").receive()
    assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
    make_client(server, 0, 1, token="secret")


# What they may send.


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"garbage", "saw 7 bytes that are not one field 'columns'"),
        (b"", "columns: saw 0 rows"),
        (b"\x0a\x05abcde", "columns: saw 5 bytes, wanted a multiple of 17"),
        # A wider observation; then one so wide that a row has as many bytes as two.
        (WIDER.encode(WIDER.empty(1)), "saw 21 bytes, wanted a multiple of 17"),
        (AS_TWO.encode(AS_TWO.empty(1)), "env_id: saw 0, wanted one of this actor's 2..2"),
    ],
)
def test_a_bad_message_fails_only_its_sender(
    make_server, make_client, raw_stream, in_background, rows, message, words
):
    """Case 31: the others' batch completes."""
    server = make_server(batch_timeout_secs=NEVER)
    good, bad = make_client(server, 0, 2), raw_stream(server, 2, 1)
    answer = in_background(good.act, rows([0, 1]))
    assert server.next_batch(0.2) is None
    with pytest.raises(grpc.RpcError) as error:
        bad.exchange(message)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert words in error.value.details()
    batch = server.next_batch(10)
    assert batch.columns[0][: batch.size].tolist() == [0, 1]
    server.reply(batch, [np.zeros(2, np.int32)])
    answer.result()
    assert server.missing_env_ids() == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("env_ids", "words"),
    [([2, 2], "env_id: saw 2 2 times"), ([2, 4], "saw 4, wanted one of this actor's 2..3")],
)
def test_wrong_env_ids_fail_only_their_sender(
    make_server, make_learner, make_client, rows, env_ids, words
):
    """Case 6: an actor sends one id twice in one call, or another actor's."""
    server = make_server()
    learner = make_learner(server)
    good, bad = make_client(server, 4, 2), make_client(server, 2, 2)
    with pytest.raises(Refused) as error:
        bad.act(rows(env_ids))
    assert words in str(error.value)
    good.act(rows([4, 5]))
    assert not learner.rows(2)


@pytest.mark.parametrize("field", ["reward", "raw_reward", "observation/pose"])
def test_rows_that_are_not_finite_are_refused(make_server, make_learner, make_client, rows, field):
    """Case 61: a NaN gets no further than the actor, which is told environment and field."""
    observation = {"pose": ArraySpec((3,), "float32"), "image": ArraySpec((2,), "uint8")}
    server = make_server(observation=observation)
    learner = make_learner(server)
    client = make_client(server, 0, 4, observation=observation)
    columns = rows([0, 1, 2, 3], observation=observation)
    client.act(columns)
    names = [name for name, _ in step_layout(observation).fields]
    columns[names.index(field)][2, ...] = np.nan
    with pytest.raises(Refused, match=f"environment 2: {field} holds nan"):
        client.act(columns)
    assert len(learner.batches) == 1


def test_step_types_are_checked(make_server, make_learner, make_client, rows):
    server = make_server()
    make_learner(server)
    with pytest.raises(Refused, match=r"environment 1: its first step_type after joining is MID"):
        make_client(server, 0, 2).act(rows([0, 1], [StepType.FIRST, StepType.MID]))
    with pytest.raises(Refused, match=r"environment 3: step_type is 7, wanted 0 \(FIRST\)"):
        make_client(server, 2, 2).act(rows([2, 3], [StepType.FIRST, 7]))


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


# How it ends.


@pytest.mark.parametrize("finished", [True, False])
def test_close_ends_all_calls_in_time(make_server, make_client, in_background, rows, finished):
    """Case 30: with streams of which none, some and all wait for a batch."""
    outcome = Finished if finished else Disconnected
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
    assert threading.active_count() <= threads + 2  # grpcio's own


@pytest.mark.parametrize(
    "place", ["batching.Batcher.add", "codec.RowCheck.check", "leases.Leases.grant"]
)
def test_a_failure_of_the_servers_thread_reaches_the_learner(
    make_server, make_client, in_background, rows, monkeypatch, place
):
    """Case 70."""

    def fail(*_):
        raise ArithmeticError("in the server's thread")

    monkeypatch.setattr(f"seed_rl.grpc.{place}", fail)
    server = make_server()
    waiting = in_background(server.next_batch, NEVER)
    with pytest.raises(Disconnected):
        make_client(server, 0, 1).act(rows([0]))
    with pytest.raises(ArithmeticError, match="in the server's thread"):
        waiting.result(5)
    with pytest.raises(ArithmeticError, match="in the server's thread"):
        server.next_batch(0)


# Addresses.


@pytest.mark.parametrize("address", ["localhost:0", "127.0.0.1:0", "[::1]:0", "0.0.0.0:0"])
def test_tcp_addresses(make_server, make_learner, make_client, rows, address):
    """Cases 23 and 119."""
    if address.startswith("[") and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    server = make_server(address)
    assert server.address.rpartition(":")[0] == address.rpartition(":")[0]
    assert not server.address.endswith(":0")
    make_learner(server)
    make_client(server, 3, 1).act(rows([3]))


@pytest.mark.parametrize("form", ["unix:p", "unix:dir/p", "unix:{}/p", "unix://{}/p"])
def test_unix_addresses(make_server, make_learner, make_client, rows, tmp_path, monkeypatch, form):
    """Case 119."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir").mkdir()
    server = make_server(form.format(tmp_path))
    make_learner(server)
    make_client(server, 3, 1).act(rows([3]))
    make_client(form.format(tmp_path), 4, 1).act(rows([4]))


def test_paths_too_long_name_the_limit(make_server, make_client):
    """Case 119."""
    path = "unix:/tmp/" + "p" * 115
    for make in (make_server, make_client):
        with pytest.raises(ValueError, match="the system's limit for a socket is 107"):
            make(path)


@pytest.mark.parametrize("address", ["localhost:0", "127.0.0.1:0", "unix:{}/p"])
def test_an_address_in_use_is_refused(
    make_server, make_learner, make_client, rows, tmp_path, address
):
    """Case 111: and the first server goes on."""
    first = make_server(address.format(tmp_path))
    make_learner(first)
    client = make_client(first, 0, 1)
    with pytest.raises(OSError, match="address in use: another program serves at"):
        make_server(first.address)
    client.act(rows([0]))
    make_client(first.address, 1, 1).act(rows([1]))
    first.close(finished=True)
    make_server(first.address)


def test_a_stale_socket_file_is_replaced(make_server, make_learner, make_client, rows, tmp_path):
    """Case 111."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "p"))
    server = make_server(f"unix:{tmp_path}/p")
    make_learner(server)
    make_client(server, 0, 1).act(rows([0]))


def test_local_addresses_go_through_no_proxy(
    make_server, make_learner, make_client, rows, tmp_path, monkeypatch
):
    """Case 115."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    for address in ("localhost:0", "127.0.0.1:0", "[::1]:0", f"unix:{tmp_path}/p"):
        server = make_server(address)
        make_learner(server)
        make_client(server, 0, 1).act(rows([0]))


# Sizes.


@pytest.mark.parametrize(
    ("num_envs", "shape"), [(64, (84, 84, 4)), (64, (72, 96, 16)), (1, (20 << 20,))]
)
def test_large_messages_pass_in_both_directions(
    make_server, make_client, in_background, num_envs, shape
):
    """Case 117."""
    spec = ArraySpec(shape, "uint8")
    server = make_server(observation=spec, action=spec, num_envs=num_envs, batch_size=num_envs)
    client = make_client(server, 0, num_envs, spec, spec)
    columns = step_layout(spec).empty(num_envs)
    columns[0][:] = np.arange(num_envs)
    columns[4][:] = np.random.default_rng(0).integers(0, 256, columns[4].shape, np.uint8)
    answer = in_background(client.act, columns)
    batch = server.next_batch(20)
    np.testing.assert_array_equal(batch.columns[4], columns[4])
    server.reply(batch, [255 - batch.columns[4]])
    np.testing.assert_array_equal(answer.result()[0], 255 - columns[4])


def test_65_actors_are_all_served(make_server, make_learner, make_client, in_background, rows):
    """Case 113."""
    server = make_server(num_envs=65, batch_size=16)
    learner = make_learner(server)
    clients = [make_client(server, env_id, 1) for env_id in range(65)]

    def act(env_id):
        return [clients[env_id].act(rows([env_id]))[0].tolist() for _ in range(5)]

    answers = [in_background(act, env_id) for env_id in range(65)]
    for env_id, answer in enumerate(answers):
        assert answer.result() == [[10 * env_id]] * 5
    assert server.stats.rows == 5 * 65 == sum(len(columns[0]) for columns, _ in learner.batches)
    assert not server.missing_env_ids()


def test_the_log_tells_who_comes_and_goes(make_server, make_client, caplog, eventually):
    caplog.set_level(logging.INFO)
    server = make_server()
    client = make_client(server, 2, 2, name="host:1")
    eventually(lambda: "actor host:1 at" in caplog.text and "joined" in caplog.text)
    client.close()
    eventually(lambda: 2 in server.missing_env_ids())
    assert "with environments 2..3" in caplog.text
