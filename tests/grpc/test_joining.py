"""Who may join, and how others are refused."""

import json
import logging
import time

import grpc
import pytest

from seed_rl.grpc.client import Disconnected, RangeTaken, Refused
from seed_rl.grpc.codec import step_layout
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType


@pytest.mark.server_only
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


@pytest.mark.server_only
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


@pytest.mark.server_only
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


@pytest.mark.server_only
def test_an_actor_larger_than_a_batch_is_refused(make_server, make_client):
    """Case 24."""
    server = make_server(batch_size=2)
    with pytest.raises(Refused, match=r"3 environments doesn't fit into .* batches of 2"):
        make_client(server, 0, 3)


@pytest.mark.server_only
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


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '[["a", {"array": {"shape": [1], "dtype": ","}}]]',
        json.dumps([["a", {"array": {"shape": [10**400], "dtype": "uint8"}}]]),
        json.dumps([["a", {"array": {"shape": [1], "dtype": "uint8", "minimum": 10**400}}]]),
        '[["\\ud800", {"array": {"shape": [1], "dtype": "uint8"}}]]',
    ],
    ids=["deep", "comma", "large", "bound", "surrogate"],
)
def test_a_layout_made_to_do_harm_fails_only_its_sender(make_server, raw_join, text):
    server = make_server()
    with pytest.raises(grpc.RpcError) as error:
        raw_join(server, step_layout=text)
    assert error.value.code() in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
    )
    assert "step_layout" in error.value.details()
    assert server.next_batch(0) is None
    raw_join(server)


def test_a_name_is_no_more_than_a_name(make_server, make_client, caplog):
    """In the log, and in what another actor is told."""
    caplog.set_level(logging.INFO)
    server = make_server()
    make_client(server, 0, 1, name="forged\nline" + "\N{LATIN SMALL LETTER E WITH ACUTE}" * 4000)
    with pytest.raises(RangeTaken, match=r"held by actor forged.line"):
        make_client(server, 0, 1)
    assert "forged\nline" not in caplog.text


@pytest.mark.server_only
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
