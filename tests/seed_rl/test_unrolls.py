"""Unrolls, by themselves and as the inference loop makes them of scripted environments."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

from seed_rl import specs
from seed_rl.acting import InferenceLoop
from seed_rl.agents import registry as agents
from seed_rl.envs.gym.factory import FactoryConfig, FactoryFamily
from seed_rl.experience import BatchQueue, Stopped
from seed_rl.frame_stack import stacked_spec
from seed_rl.grpc.server import Batch
from seed_rl.inference import Inference, Step
from seed_rl.metrics import Accumulator
from seed_rl.queued import QueuedSource
from seed_rl.specs import ArraySpec, EnvironmentSpecs
from seed_rl.threads import ThreadGroup
from seed_rl.types import StepInputs, StepType
from seed_rl.unrolls import UnrollStore

STEP_SPECS = [ArraySpec((), "int64"), ArraySpec((2,), "float32")]
STATE_SPECS = [ArraySpec((3,), "float32")]


# The store by itself: environment i's n-th step is the number 1000 i + n.


class Recorder:
    """Appends steps to a store and keeps what comes out of it."""

    def __init__(self, store: UnrollStore, num_envs: int) -> None:
        self._store = store
        self.counts = np.zeros(num_envs, np.int64)
        self.unrolls: dict[int, list[list[int]]] = collections.defaultdict(list)

    def append(self, env_ids: np.ndarray, version: int = 0) -> np.ndarray:
        numbers = 1000 * env_ids + self.counts[env_ids]
        self.counts[env_ids] += 1
        columns = [numbers, np.stack([numbers, -numbers], axis=1).astype(np.float32)]
        states = [np.repeat(numbers[:, None], 3, axis=1).astype(np.float32)]
        whole = self._store.append(env_ids, columns, states, version)
        for env_id in whole:
            unroll = self._store.steps[0][env_id].tolist()
            assert self._store.steps[1][env_id].tolist() == [[n, -n] for n in unroll]
            # The state that went into the first step.
            assert self._store.states[0][env_id].tolist() == [unroll[0]] * 3
            self.unrolls[int(env_id)].append(unroll)
        self._store.advance(whole)
        return whole


@pytest.mark.parametrize("length", [1, 2, 5])
def test_unrolls_overlap_by_one_step(length: int) -> None:
    """Case 58: those of each environment come in order of time, whatever batches it is in."""
    rng = np.random.default_rng(length)
    num_envs = 4
    recorder = Recorder(
        UnrollStore(num_envs, length, STEP_SPECS, STATE_SPECS, group_size=num_envs), num_envs
    )
    for _ in range(100):
        recorder.append(rng.permutation(num_envs)[: rng.integers(1, num_envs + 1)])
    for env_id in range(num_envs):
        stream = [1000 * env_id + n for n in range(recorder.counts[env_id])]
        expected = [
            stream[start : start + length + 1] for start in range(0, len(stream) - length, length)
        ]
        assert recorder.unrolls[env_id] == expected
        assert len(expected) > 3


def test_versions_of_each_step() -> None:
    store = UnrollStore(1, 2, STEP_SPECS, STATE_SPECS)
    recorder = Recorder(store, 1)
    seen = []
    for version in range(5):
        if len(recorder.append(np.array([0]), version + 10)):
            seen.append(store.versions[0].tolist())
    # `advance` has copied the last version to the front by now.
    assert seen == [[12, 11, 12], [14, 13, 14]]


@pytest.mark.parametrize("group_size", [1, 2, 4])
def test_groups_of_environments_end_their_unrolls_in_turn(group_size: int) -> None:
    """So that batches come evenly. Nothing else depends on it: no step is lost once it started."""
    num_envs, length = 8, 4
    store = UnrollStore(num_envs, length, STEP_SPECS, STATE_SPECS, group_size)
    recorder = Recorder(store, num_envs)
    everyone = np.arange(num_envs)
    ended = [recorder.append(everyone).tolist() for _ in range(5 * length)]
    in_turn = {
        1: [[0, 1], [2, 3], [4, 5], [6, 7]],
        2: [[0, 1], [2, 3], [4, 5], [6, 7]],
        4: [[0, 1, 2, 3], [], [4, 5, 6, 7], []],
    }
    assert ended[length : 5 * length] == in_turn[group_size] * 4
    for env_id in range(num_envs):
        start = env_id // group_size * length * group_size // num_envs
        for k, unroll in enumerate(recorder.unrolls[env_id]):
            first = 1000 * env_id + start + k * length
            assert unroll == list(range(first, first + length + 1))


@pytest.mark.parametrize("group_size", [1, 2, 3])
def test_restart_drops_the_unroll_in_progress_of_these_environments_only(group_size: int) -> None:
    num_envs, length = 3, 4
    store = UnrollStore(num_envs, length, STEP_SPECS, STATE_SPECS, group_size)
    recorder = Recorder(store, num_envs)
    everyone = np.arange(num_envs)
    for _ in range(2 * length + 2):
        recorder.append(everyone)
    before = {env_id: len(recorder.unrolls[env_id]) for env_id in range(num_envs)}
    restarted_at = int(recorder.counts[1])
    store.restart(np.array([1]))
    for _ in range(2 * length + 2):
        recorder.append(everyone)
    first = 1000 + restarted_at + (length // num_envs if group_size == 1 else 0)
    assert recorder.unrolls[1][before[1]] == list(range(first, first + length + 1))
    for env_id in (0, 2):
        unrolls = recorder.unrolls[env_id]
        for one, other in itertools.pairwise(unrolls):
            assert one[-1] == other[0]


# The inference loop with environments that follow a script, and a server that chooses at random
# whose steps come together.


class Scripted(gymnasium.Env[np.ndarray, int]):
    """Pays 1 + action, or at some steps only; ends an episode now this way, now that."""

    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, pays_at: Callable[[int], bool] = lambda t: True, image: bool = False):
        self._pays_at, self._image = pays_at, image
        self._episode = 0
        self._total = 0  # rows so far, FIRST ones included
        if image:
            self.observation_space = gymnasium.spaces.Box(0, 255, (36, 36), np.uint8)
        else:
            self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def _observe(self) -> np.ndarray:
        if self._image:
            return np.full((36, 36), self._episode, np.uint8)
        return np.array([self._episode, self._time], np.float32)

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self._total += self._episode > 0
        self._episode += 1
        self._time = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._time += 1
        self._total += 1
        ends = self._time == 1 + self._episode**2 % 7  # from 1 to 5 steps
        reward = float(1 + action) if self._pays_at(self._total) else 0.0
        return (
            self._observe(),
            reward,
            ends and self._episode % 2 == 0,
            ends and self._episode % 2 == 1,
            {},
        )


@dataclasses.dataclass
class Row:
    step_type: int
    reward: float
    observation: np.ndarray
    action: int = -1
    prev_action: int = 0


class ScriptedServer:
    """Takes the place of the gRPC server, and remembers every row and its answer."""

    def __init__(
        self,
        family: FactoryFamily,
        num_envs: int,
        capacity: int,
        num_batches: int,
        restarts: dict[int, int],
        batches: BatchQueue,
        stop: threading.Event,
    ) -> None:
        self._family = family
        self._envs = [self._make(env_id) for env_id in range(num_envs)]
        self._pending = [env.reset() for env in self._envs]
        self._is_new = np.ones(num_envs, bool)
        self._capacity, self._left, self._restarts = capacity, num_batches, restarts
        self._batches, self._stop = batches, stop
        self._rng = np.random.default_rng(1)
        leaf = family.specs(FactoryConfig()).observation
        self._columns = [
            spec.zeros(capacity)
            for spec in (
                ArraySpec((), "int32"),
                ArraySpec((), "uint8"),
                ArraySpec((), "float32"),
                ArraySpec((), "float32"),
                leaf,
            )
        ]
        self.rows: list[list[list[Row]]] = [[[]] for _ in self._envs]  # by environment and lease

    def _make(self, env_id: int) -> Any:
        return self._family.make(FactoryConfig(), [env_id], seed=0)

    def next_batch(self, timeout: float) -> Batch | None:
        if not self._left:
            deadline = time.monotonic() + 30
            while self._batches.waiting and time.monotonic() < deadline:
                time.sleep(0.01)
            self._stop.set()
            return None
        self._left -= 1
        restarted = self._restarts.get(self._left)
        if restarted is not None:  # its actor died and came back
            self._envs[restarted] = self._make(restarted)
            self._pending[restarted] = self._envs[restarted].reset()
            self._is_new[restarted] = True
            self.rows[restarted].append([])
        size = int(self._rng.integers(1, self._capacity + 1))
        env_ids = self._rng.permutation(len(self._envs))[:size]
        size = len(env_ids)
        for row, env_id in enumerate(env_ids):
            transition = self._pending[env_id]
            values = (
                env_id,
                transition.step_type[0],
                transition.reward[0],
                transition.raw_reward[0],
                transition.observation[0],
            )
            for column, value in zip(self._columns, values, strict=True):
                column[row] = value
        batch = Batch(size, self._columns, self._is_new[env_ids], [])
        self._is_new[env_ids] = False
        return batch

    def reply(self, batch: Batch, actions: list[np.ndarray]) -> None:
        (actions_column,) = actions
        for env_id, action in zip(batch.columns[0][: batch.size], actions_column, strict=True):
            seen = self._pending[env_id]
            rows = self.rows[env_id][-1]
            is_first = seen.step_type[0] == StepType.FIRST
            prev_action = 0 if is_first else rows[-1].action
            rows.append(
                Row(
                    int(seen.step_type[0]),
                    float(seen.reward[0]),
                    seen.observation[0],
                    int(action),
                    prev_action,
                )
            )
            self._pending[env_id] = self._envs[env_id].step(np.array([action]))


@dataclasses.dataclass
class Unroll:
    step: StepInputs
    action: np.ndarray
    extras: dict[str, np.ndarray]
    state: specs.Nest


@dataclasses.dataclass
class Result:
    agent: Any
    rows: list[list[list[Row]]]
    unrolls: list[list[Unroll]]  # by environment, in the order in which they came
    metrics: Accumulator


LENGTH = 5
NUM_ENVS = 3


def play(
    make_env: Callable[[], Any],
    num_batches: int,
    lstm_size: int = 0,
    depth: int = 1,
    restarts: dict[int, int] | None = None,
    capacity: int = NUM_ENVS,
) -> Result:
    """Runs the inference loop over these environments and collects all unrolls."""
    family = FactoryFamily("test:make", make_env)
    single = family.specs(FactoryConfig())
    seen = EnvironmentSpecs(stacked_spec(single.observation, depth), single.action)
    algorithm = agents.load("vtrace")
    config = algorithm.Config(unroll_length=LENGTH, batch_size=2, lstm_size=lstm_size)
    agent = algorithm.make(config, seen, seed=3)
    inference = Inference(agent, single, NUM_ENVS, capacity, depth, seed=5)
    group = ThreadGroup(threading.Event())
    source = QueuedSource(
        NUM_ENVS, 1, LENGTH, inference.step_specs, inference.state_specs, group.stop
    )
    source._store = UnrollStore(
        NUM_ENVS,
        LENGTH,
        specs.flatten(inference.step_specs),
        specs.flatten(inference.state_specs),
        group_size=NUM_ENVS,
    )
    batches = source._batches
    server = ScriptedServer(
        family, NUM_ENVS, capacity, num_batches, restarts or {}, batches, group.stop
    )
    metrics = Accumulator()
    loop = InferenceLoop(
        server,  # type: ignore[arg-type]
        inference,
        source,
        NUM_ENVS,
        0,
        lambda: 0,
        metrics,
        group.stop,
    )
    unrolls: list[list[Unroll]] = [[] for _ in range(NUM_ENVS)]
    group.start("inference", loop.run)
    try:
        while True:
            batches.ask()
            batch = batches.get()
            steps: Step = specs.unflatten(
                inference.step_specs, [leaf[:, 0].copy() for leaf in batch.steps]
            )
            state = specs.unflatten(inference.state_specs, [leaf.copy() for leaf in batch.states])
            unrolls[batch.env_ids[0]].append(Unroll(*steps, state))
            batches.release(batch)
    except Stopped:
        pass
    group.join(10)
    group.raise_failure()
    return Result(agent, server.rows, unrolls, metrics)


def assert_is(unroll: Unroll, rows: list[Row]) -> None:
    assert unroll.step.step_type.tolist() == [row.step_type for row in rows]
    assert unroll.step.reward.tolist() == [row.reward for row in rows]
    assert unroll.action.tolist() == [row.action for row in rows]
    assert unroll.step.prev_action.tolist() == [row.prev_action for row in rows]
    np.testing.assert_array_equal(unroll.step.observation, [row.observation for row in rows])


def test_stored_unrolls_are_what_happened() -> None:
    """Cases 3 and 58: observation, action, reward and step type belong together, and unrolls of
    one environment leave in the order of time."""
    result = play(Scripted, num_batches=150)
    kinds = set()
    for env_id in range(NUM_ENVS):
        (rows,) = result.rows[env_id]
        unrolls = result.unrolls[env_id]
        assert len(unrolls) == (len(rows) - 1) // LENGTH > 5
        for k, unroll in enumerate(unrolls):
            assert_is(unroll, rows[k * LENGTH : (k + 1) * LENGTH + 1])
            step_type = unroll.step.step_type
            for t in range(LENGTH):
                paid = 0 if step_type[t + 1] == StepType.FIRST else 1 + unroll.action[t]
                assert unroll.step.reward[t + 1] == paid
                # The row after the end of an episode is the first of the next, and only that.
                is_last = step_type[t] in (StepType.TERMINATED, StepType.TRUNCATED)
                assert (step_type[t + 1] == StepType.FIRST) == is_last
                kinds.add((int(step_type[t]), t))
    # Every kind of row was seen at every place of an unroll.
    assert len(kinds) == len(StepType) * LENGTH


def test_episodes_are_counted_as_they_were() -> None:
    """Case 42: returns and lengths are of whole episodes."""
    result = play(Scripted, num_batches=60)
    returns, lengths = [], []
    for ((*rows,),) in result.rows:
        total, length = 0.0, 0
        for row in rows:
            total, length = (0.0, 0) if row.step_type == 0 else (total + row.reward, length + 1)
            if row.step_type >= StepType.TERMINATED:
                returns.append(total)
                lengths.append(length)
    scalars = result.metrics.take()
    assert scalars["episode/finished"] == len(returns)
    np.testing.assert_allclose(scalars["episode/return"], np.mean(returns))
    np.testing.assert_allclose(scalars["episode/length"], np.mean(lengths))


@pytest.mark.parametrize("offset", [0, -1, 1])
def test_reward_at_the_edge_of_an_unroll_counts_once(offset: int) -> None:
    """Case 48: environments that pay only at rows k T - 1, k T or k T + 1. A loss uses the rewards
    of rows 1 to T, those that its actions earned."""
    result = play(lambda: Scripted(lambda t: t % LENGTH == offset % LENGTH), num_batches=60)
    for env_id in range(NUM_ENVS):
        (rows,) = result.rows[env_id]
        unrolls = result.unrolls[env_id]
        used = rows[1 : len(unrolls) * LENGTH + 1]
        emitted = sum(row.reward for row in used)
        assert emitted > 0
        assert sum(unroll.step.reward[1:].sum() for unroll in unrolls) == emitted


def test_an_unroll_starts_with_the_state_in_which_the_one_before_ended() -> None:
    """Case 51: replayed through the network, each unroll leads to the state of the next."""
    result = play(Scripted, num_batches=60, lstm_size=4)
    compared = 0
    for unrolls in result.unrolls:
        assert all((leaf == 0).all() for leaf in specs.flatten(unrolls[0].state))
        for unroll, following in itertools.pairwise(unrolls):
            state = unroll.state
            for t in range(LENGTH):
                step = specs.map_nest(lambda leaf, t=t: tf.constant(leaf[t : t + 1]), unroll.step)
                output = result.agent.act(step, state, tf.constant([0, 0]), tf.ones(1))
                for name, extra in output.extras.items():
                    np.testing.assert_allclose(extra[0], unroll.extras[name][t], atol=1e-5)
                state = output.state
            for leaf, stored in zip(
                specs.flatten(state), specs.flatten(following.state), strict=True
            ):
                np.testing.assert_allclose(leaf, stored, atol=1e-5)
                assert np.abs(stored).max() > 0
            compared += 1
    assert compared > 10


@pytest.mark.parametrize("depth", [2, 4])
def test_stacks_in_unrolls_show_one_episode_only(depth: int) -> None:
    """Case 100: episode k paints k. Inside an unroll, too, older frames are of k or black."""
    result = play(lambda: Scripted(image=True), num_batches=40, depth=depth)
    resets = 0
    for env_id in range(NUM_ENVS):
        (rows,) = result.rows[env_id]
        for k, unroll in enumerate(result.unrolls[env_id]):
            part = rows[k * LENGTH : (k + 1) * LENGTH + 1]
            assert unroll.step.observation.shape == (LENGTH + 1, 36, 36, depth)
            resets += np.count_nonzero(unroll.step.step_type[1:] == StepType.FIRST)
            for t, row in enumerate(part):
                episode = row.observation[0, 0]
                newest = unroll.step.observation[t, ..., -1]
                assert (newest == episode).all()
                assert set(np.unique(unroll.step.observation[t])) <= {0, episode}
                if row.step_type == StepType.FIRST:
                    assert (unroll.step.observation[t, ..., :-1] == 0).all()
    assert resets > 5


def test_an_actor_that_starts_anew_drops_its_unroll_and_its_memory() -> None:
    """Cases 3 and 64: what was before the restart never shares an unroll with what is after it."""
    restarts = {60: 1, 31: 1, 30: 0}
    result = play(Scripted, num_batches=90, lstm_size=4, restarts=restarts)
    for env_id, num_leases in enumerate((2, 3, 1)):
        leases, unrolls = result.rows[env_id], iter(result.unrolls[env_id])
        assert len(leases) == num_leases
        for rows in leases:
            for k in range((len(rows) - 1) // LENGTH):
                unroll = next(unrolls)
                assert_is(unroll, rows[k * LENGTH : (k + 1) * LENGTH + 1])
                if k == 0:
                    fresh = result.agent.act(
                        specs.map_nest(lambda leaf: tf.constant(leaf[:1]), unroll.step),
                        result.agent.initial_state(1),
                        tf.constant([0, 0]),
                        tf.ones(1),
                    )
                    for name, extra in fresh.extras.items():
                        np.testing.assert_allclose(extra[0], unroll.extras[name][0], atol=1e-5)
        assert next(unrolls, None) is None
