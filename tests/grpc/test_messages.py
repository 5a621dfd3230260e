"""What actors may send."""

import grpc
import numpy as np
import pytest

from seed_rl.grpc.client import Refused
from seed_rl.grpc.codec import step_layout
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType

pytestmark = pytest.mark.server_only
WIDER = step_layout(ArraySpec((8,), "uint8"))
AS_TWO = step_layout(ArraySpec((21,), "uint8"))
NEVER = 60.0  # a batch timeout that no test waits for


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
    make_server, make_client, raw_stream, in_background, rows, eventually, message, words
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
    eventually(lambda: server.missing_env_ids() == [2, 3, 4, 5, 6, 7])


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
