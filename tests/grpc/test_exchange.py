"""What passes between actors and the learner, and what the log tells of it."""

import logging

import numpy as np
import pytest

from seed_rl.grpc.codec import step_layout
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType


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


@pytest.mark.server_only
def test_the_log_tells_who_comes_and_goes(make_server, make_client, caplog, eventually):
    caplog.set_level(logging.INFO)
    server = make_server()
    client = make_client(server, 2, 2, name="host:1")
    eventually(lambda: "actor host:1 at" in caplog.text and "joined" in caplog.text)
    client.close()
    eventually(lambda: 2 in server.missing_env_ids())
    assert "with environments 2..3" in caplog.text
