"""Central inference: memory of each environment, padding, and one traced function."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow as tf

from seed_rl import specs
from seed_rl.agent import ActOutput
from seed_rl.agents import registry as agents
from seed_rl.inference import Answers, Inference, padded_size
from seed_rl.specs import ArraySpec, EnvironmentSpecs, Nest
from seed_rl.types import StepInputs, StepType

FIRST, MID, TERMINATED, TRUNCATED = (int(kind) for kind in StepType)
VECTORS = EnvironmentSpecs(ArraySpec((3,), "float32"), ArraySpec((), "int32", 0, 2))


class Counter:
    """Its state is the number of steps since FIRST; it answers with what it sees."""

    unroll_length = 1
    burn_in = 0
    replay = None
    trainable_variables = ()

    def __init__(self) -> None:
        self.traces = 0

    def initial_state(self, batch_size: int) -> Nest:
        return {"count": tf.zeros([batch_size, 1], tf.int32)}

    def exploration(self, num_envs: int, num_eval_envs: int) -> np.ndarray:
        return np.arange(num_envs, dtype=np.float32) - num_eval_envs

    def act(
        self, step: StepInputs, state: Nest, seed: tf.Tensor, exploration: tf.Tensor
    ) -> ActOutput:
        self.traces += 1
        is_first = tf.equal(step.step_type, StepType.FIRST.value)[:, tf.newaxis]
        count = tf.where(is_first, 0, state["count"]) + 1
        return ActOutput(
            tf.cast(step.observation[:, 0], tf.int32),
            {
                "previous": step.prev_action,
                "seed": tf.repeat(seed[1], tf.shape(count)[0]),
                "exploration": exploration,
            },
            {"count": count},
        )

    def loss(self, unrolls: Any) -> Any:
        raise NotImplementedError

    def initial_priorities(self, step_type: Any, reward: Any, extras: Any) -> Any:
        raise NotImplementedError

    def after_update(self, num_updates: tf.Tensor, unrolls: Any, applied: tf.Tensor) -> None:
        raise NotImplementedError


class Caller:
    """Calls an Inference with columns as a server has them: full of what was there before."""

    def __init__(self, inference: Inference, num_envs: int, capacity: int) -> None:
        self._inference = inference
        self._rng = np.random.default_rng(0)
        self._num_envs = num_envs
        self._capacity = capacity

    def __call__(self, env_ids: list[int], step_type: int, observation: float = 0) -> Answers:
        n = len(env_ids)
        all_ids = self._rng.integers(0, self._num_envs, self._capacity, np.int32)
        types = self._rng.integers(0, 4, self._capacity, np.uint8)
        reward = np.full(self._capacity, np.nan, np.float32)
        seen = np.full((self._capacity, 3), np.nan, np.float32)
        all_ids[:n], types[:n], reward[:n], seen[:n] = env_ids, step_type, 0, observation
        return self._inference(all_ids, types, reward, [seen], n)


def vtrace(lstm_size: int = 0, environment: EnvironmentSpecs = VECTORS) -> Any:
    algorithm = agents.load("vtrace")
    return algorithm.make(algorithm.Config(lstm_size=lstm_size), environment, seed=1)


def test_each_environment_explores_as_the_agent_says() -> None:
    """Case 87: also in a batch of any order. The last environments are those that evaluate."""
    call = Caller(Inference(Counter(), VECTORS, 4, 4, num_eval_envs=1), 4, 4)
    answers = call([3, 0, 2], FIRST)
    assert answers.step.extras["exploration"].tolist() == [2, -1, 1]


def test_padded_sizes_are_few() -> None:
    assert [padded_size(n, 64) for n in (1, 2, 3, 4, 5, 33, 64)] == [1, 2, 4, 4, 8, 64, 64]
    assert [padded_size(n, 48) for n in (31, 32, 33, 48)] == [32, 32, 48, 48]
    assert padded_size(1, 1) == 1
    assert {padded_size(n, 100) for n in range(1, 101)} == {1, 2, 4, 8, 16, 32, 64, 100}


@pytest.mark.parametrize("capacity", [3, 8])
def test_state_and_previous_action_belong_to_their_environment(capacity: int) -> None:
    """Each environment's memory goes on whatever batches it is in; padding rows, which hold ids
    of other environments left over from earlier batches, touch none of it."""
    num_envs = 3
    inference = Inference(Counter(), VECTORS, num_envs, capacity)
    call = Caller(inference, num_envs, capacity)
    call([0, 1, 2], FIRST, 7)
    rng = np.random.default_rng(1)
    counts, actions = np.ones(num_envs, int), np.full(num_envs, 7)
    for number in range(60):
        env_ids = rng.permutation(num_envs)[: rng.integers(1, num_envs + 1)]
        step_type = int(rng.choice([FIRST, MID, MID, TERMINATED, TRUNCATED]))
        answers = call(env_ids.tolist(), step_type, number)
        previous = np.zeros(len(env_ids)) if step_type == FIRST else actions[env_ids]
        # The state that went in, before the reset that FIRST asks for.
        np.testing.assert_array_equal(answers.state["count"][:, 0], counts[env_ids])
        np.testing.assert_array_equal(answers.step.step.prev_action, previous)
        np.testing.assert_array_equal(answers.step.extras["previous"], previous)
        assert (answers.step.action == number).all()
        assert (answers.step.step.step_type == step_type).all()
        assert (answers.step.step.observation == number).all()
        counts[env_ids] = 1 if step_type == FIRST else counts[env_ids] + 1
        actions[env_ids] = number


def test_padding_does_not_change_the_answers_of_a_real_network() -> None:
    """Nor does NaN in what padding rows have left over."""
    agent = vtrace(lstm_size=4)
    answers = []
    for capacity in (3, 16):
        call = Caller(Inference(agent, VECTORS, 3, capacity, seed=2), 3, capacity)
        call([2, 0, 1], FIRST, 0.5)
        answers.append([call([0, 2], MID, 0.1 * t) for t in range(5)])
    for one, other in zip(*answers, strict=True):
        for a, b in zip(specs.flatten(one), specs.flatten(other), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
            assert np.isfinite(a).all()


def test_same_seed_same_actions() -> None:
    agent = vtrace()

    def actions(seed: int) -> list[int]:
        call = Caller(Inference(agent, VECTORS, 2, 2, seed=seed), 2, 2)
        return [int(a) for t in range(30) for a in call([0, 1], MID, t).step.action]

    assert actions(3) == actions(3) != actions(4)
    assert set(actions(3)) == {0, 1, 2}


def test_each_call_has_a_seed_of_its_own_for_years() -> None:
    """A thousand calls a second reach 2^31 in 25 days."""
    inference = Inference(Counter(), VECTORS, 1, 1)
    call = Caller(inference, 1, 1)
    seeds = [int(call([0], MID).step.extras["seed"][0]) for _ in range(3)]
    assert len(set(seeds)) == 3
    inference._calls = 2**31 - 2
    seeds = [int(call([0], MID).step.extras["seed"][0]) for _ in range(4)]
    assert len(set(seeds)) == 4


def test_one_trace_and_no_growth_for_batches_of_any_size() -> None:
    """Case 124."""
    capacity = 64
    agent = Counter()
    call = Caller(Inference(agent, VECTORS, capacity, capacity), capacity, capacity)
    assert agent.traces == 1
    rng = np.random.default_rng(0)
    process = psutil.Process()

    def run(num_calls: int) -> None:
        for size in rng.integers(1, capacity + 1, num_calls):
            call(rng.permutation(capacity)[:size].tolist(), MID)

    for size in range(1, capacity + 1):
        call(list(range(size)), MID)
    run(500)
    before = process.memory_info().rss
    run(1500)
    assert agent.traces == 1
    assert process.memory_info().rss - before < 8 << 20


def test_batches_of_any_size_for_the_real_network() -> None:
    """Case 124."""
    agent = vtrace(lstm_size=4)
    call = Caller(Inference(agent, VECTORS, 64, 64), 64, 64)
    expected = call([0], FIRST, 1).step.extras["policy"][0]
    for size in np.random.default_rng(0).permutation(64) + 1:
        policy = call(list(range(size)), FIRST, 1).step.extras["policy"]
        assert policy.shape == (size, 3)
        np.testing.assert_allclose(policy, np.broadcast_to(expected, policy.shape), atol=1e-6)


def test_nests_of_observations_and_actions() -> None:
    environment = EnvironmentSpecs(
        {"image": ArraySpec((2, 2), "uint8", 0, 255), "speed": ArraySpec((), "float32")},
        {
            "buttons": (ArraySpec((), "int32", 0, 1), ArraySpec((2,), "float32")),
            "aim": VECTORS.action,
        },
    )

    class Nested(Counter):
        def act(
            self, step: StepInputs, state: Nest, seed: tf.Tensor, exploration: tf.Tensor
        ) -> ActOutput:
            speed = step.observation["speed"]
            total = tf.reduce_sum(tf.cast(step.observation["image"], tf.int32), [1, 2, 3])
            action = {"aim": total, "buttons": (total + 1, tf.stack([speed, -speed], axis=1))}
            return ActOutput(action, {}, state)

    inference = Inference(Nested(), environment, 2, 4)
    image = np.zeros((4, 2, 2), np.uint8)
    image[0], image[1] = 1, 2
    speed = np.array([0.5, 1.5, 0, 0], np.float32)
    env_ids = np.array([1, 0, 0, 0], np.int32)
    types, reward = np.full(4, MID, np.uint8), np.zeros(4, np.float32)
    inference(env_ids, types, reward, [image, speed], 2)
    answers = inference(env_ids, types, reward, [image, speed], 2)
    for action in (answers.step.action, answers.step.step.prev_action):
        assert action["aim"].tolist() == [4, 8]
        assert action["buttons"][0].tolist() == [5, 9]
        assert action["buttons"][1].tolist() == [[0.5, -0.5], [1.5, -1.5]]
    # Networks see gray images with a channel.
    assert answers.step.step.observation["image"].shape == (2, 2, 2, 1)
    shapes = [leaf.shape for leaf in specs.flatten(inference.step_specs)]
    assert [leaf.shape[1:] for leaf in specs.flatten(answers.step)] == shapes
    dtypes = [leaf.dtype for leaf in specs.flatten(inference.step_specs)]
    assert [leaf.dtype.name for leaf in specs.flatten(answers.step)] == dtypes


COLD_PROCESS = """
import threading
import numpy as np
from seed_rl.agents import registry as agents
from seed_rl.inference import Inference
from seed_rl.specs import ArraySpec, EnvironmentSpecs

specs = EnvironmentSpecs(ArraySpec((3,), "float32"), ArraySpec((), "int32", 0, 2))
algorithm = agents.load("vtrace")
agent = algorithm.make(algorithm.Config(lstm_size=4), specs, 1)
variables = [(v.name, v.ref()) for v in agent.variables]
assert len(variables) > 5
start = threading.Barrier(8)
results = [None] * 8

def infer(i):
    start.wait()
    inference = Inference(agent, specs, 2, 2, seed=7)
    answers = []
    for t in range(20):
        columns = np.array([0, 1], np.int32), np.full(2, min(t, 1), np.uint8)
        seen = [np.full((2, 3), t / 20, np.float32)]
        answers += inference(*columns, np.zeros(2, np.float32), seen, 2).step.action.tolist()
    results[i] = answers

threads = [threading.Thread(target=infer, args=(i,)) for i in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(results[0]) == 40 and all(result == results[0] for result in results), results
assert [(v.name, v.ref()) for v in agent.variables] == variables
"""


def test_threads_of_a_cold_process_infer_at_once() -> None:
    """Case 123: every variable exists before the first call, so that threads, each with an
    Inference of its own, can't race to make them."""
    subprocess.run([sys.executable, "-c", COLD_PROCESS], check=True, timeout=150)
