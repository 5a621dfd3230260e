"""The way of steps through the replay: what is trained on is what has happened."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from seed_rl import specs
from seed_rl.agents import registry as agents
from seed_rl.frame_stack import stacked_spec
from seed_rl.inference import Inference
from seed_rl.replayed import ReplayedSource, importance_weights
from seed_rl.specs import ArraySpec, EnvironmentSpecs
from seed_rl.types import StepType, Unrolls

NUM_ENVS, BATCH_SIZE = 3, 2
FRAME = EnvironmentSpecs(ArraySpec((36, 36), "uint8", 0, 255), ArraySpec((), "int32", 0, 2))
VECTOR = EnvironmentSpecs({"x": ArraySpec((4,), "float32")}, ArraySpec((), "int32", 0, 2))
FIRST, MID, TERMINATED, TRUNCATED = (int(kind) for kind in StepType)


class Play:
    """Environments of random episodes, an agent that answers them, and a source that is told.

    The reward of every step is another number, by which it is found again.
    """

    def __init__(
        self,
        single: EnvironmentSpecs,
        depth: int = 1,
        skips_bad: bool = False,
        num_unrolls: int = 1000,
        **options: Any,
    ) -> None:
        self.stop = threading.Event()
        algorithm = agents.load("r2d2")
        config = algorithm.Config(
            batch_size=BATCH_SIZE,
            replay_buffer_size=num_unrolls,
            replay_buffer_min_size=BATCH_SIZE,
            replay_ratio=1000.0,
            lstm_size=4,
            dueling_size=4,
            **options,
        )
        seen = EnvironmentSpecs(stacked_spec(single.observation, depth), single.action)
        agent = algorithm.make(config, seen, seed=1)
        self.burn_in = agent.burn_in
        self._single = single
        self._inference = Inference(agent, single, NUM_ENVS, NUM_ENVS, depth)
        self.source = ReplayedSource(
            agent,
            config,
            NUM_ENVS,
            BATCH_SIZE,
            single.observation,
            depth,
            self._inference.step_specs,
            self._inference.state_specs,
            0,
            skips_bad,
            "",
            self.stop,
        )
        # Nobody trains meanwhile.
        self.source.limiter.wait_to_insert = lambda: None  # type: ignore[method-assign]
        self._rng = np.random.default_rng(0)
        self._step_type = np.full(NUM_ENVS, TERMINATED, np.uint8)
        self.answered: list[dict[float, Any]] = [{} for _ in range(NUM_ENVS)]  # by reward
        self.order: list[list[float]] = [[] for _ in range(NUM_ENVS)]
        self.num_steps = 0

    def step(self, env_ids: np.ndarray, reward: float | None = None) -> None:
        last = self._step_type[env_ids]
        kinds = self._rng.choice(
            np.array([MID, TERMINATED, TRUNCATED], np.uint8), len(env_ids), p=[0.8, 0.1, 0.1]
        )
        step_type = np.where(last >= TERMINATED, FIRST, kinds).astype(np.uint8)
        self._step_type[env_ids] = step_type
        self.num_steps += 1
        rewards = np.full(NUM_ENVS, self.num_steps if reward is None else reward, np.float32)
        rewards[: len(env_ids)] += np.asarray(env_ids) / 8
        columns = [
            self._rng.integers(0, 256, (NUM_ENVS, *spec.shape)).astype(spec.dtype)
            for spec in specs.flatten(self._single.observation)
        ]
        padded_ids, padded_types = np.zeros(NUM_ENVS, np.int32), np.zeros(NUM_ENVS, np.uint8)
        padded_ids[: len(env_ids)], padded_types[: len(env_ids)] = env_ids, step_type
        answers = self._inference(padded_ids, padded_types, rewards, columns, len(env_ids))
        for row, env_id in enumerate(env_ids):
            one = specs.map_nest(lambda leaf, row=row: np.array(leaf[row]), answers)
            self.answered[env_id][float(rewards[row])] = one
            self.order[env_id].append(float(rewards[row]))
        whole = self.source.append(
            np.asarray(env_ids),
            answers,
            [column[: len(env_ids)] for column in columns],
            self.num_steps,
        )
        if len(whole):
            self.source.put(whole)

    def batch(self) -> tuple[Unrolls, np.ndarray]:
        """What the loss gets, and whose unrolls they are."""
        host = self.source.get()
        form = self.source.form
        leaves = [tf.constant(leaf) for leaf in [*host.steps, *host.states]]
        steps, state = specs.unflatten((form.steps, form.state), leaves)
        unrolls = form.unpack(steps, state, tf.constant(host.weights))
        env_ids = host.env_ids.copy()
        self.source.release(host)
        return specs.map_nest(np.array, unrolls), env_ids


@pytest.mark.parametrize(
    ("single", "depth", "length", "burn_in"),
    [(FRAME, 4, 6, 3), (FRAME, 1, 5, 5), (FRAME, 2, 3, 8), (VECTOR, 1, 4, 0), (VECTOR, 1, 1, 2)],
)
def test_batches_are_what_happened(
    single: EnvironmentSpecs, depth: int, length: int, burn_in: int
) -> None:
    """Cases 3, 51, 86 and 100: observation, stack, previous action, action, reward and the state of
    the first step of the burn-in belong together, across episodes, and never across a restart."""
    play = Play(single, depth, unroll_length=length, burn_in=burn_in, num_unrolls=40)
    rng = np.random.default_rng(1)
    starts = [{0} for _ in range(NUM_ENVS)]
    sampled = 0
    for step in range(400):
        play.step(rng.permutation(NUM_ENVS)[: rng.integers(1, NUM_ENVS + 1)])
        if step % 90 == 89:
            play.source.restart(np.array([1]))
            play._step_type[1] = TERMINATED
            starts[1].add(len(play.order[1]))
        if step % 10 or play.source._buffer.num_unrolls < BATCH_SIZE:
            continue
        unrolls, env_ids = play.batch()
        num_rows = burn_in + length + 1
        assert unrolls.step.step_type.shape == (num_rows, BATCH_SIZE)
        assert unrolls.weights.max() == 1
        for column, env_id in enumerate(env_ids):
            rewards = unrolls.step.reward[:, column].tolist()
            first = play.order[env_id].index(rewards[0])
            assert play.order[env_id][first : first + num_rows] == rewards
            assert not starts[env_id] & set(range(first + 1, first + num_rows))
            answered = [play.answered[env_id][reward] for reward in rewards]
            got = specs.map_nest(
                lambda leaf, column=column: leaf[:, column], (unrolls.step, unrolls.action)
            )
            wanted = specs.map_nest(
                lambda *leaves: np.stack(leaves),
                *[(answer.step.step, answer.step.action) for answer in answered],
            )
            for leaf, wanted_leaf in zip(specs.flatten(got), specs.flatten(wanted), strict=True):
                np.testing.assert_array_equal(leaf, wanted_leaf)
            for leaf, wanted_leaf in zip(unrolls.state, answered[0].state, strict=True):
                np.testing.assert_array_equal(leaf[column], wanted_leaf)
            sampled += 1
    assert sampled > 20


def test_what_is_not_finite_ends_the_run_and_names_whose_it_is() -> None:
    """Case 61: it would be replayed, and spoil the weights, much later."""
    play = Play(VECTOR, unroll_length=4, burn_in=2)
    everyone = np.arange(NUM_ENVS)
    for _ in range(9):
        play.step(everyone)
    play.step(np.array([2]), np.nan)

    def go_on() -> None:
        for _ in range(5):
            play.step(everyone)

    with pytest.raises(FloatingPointError, match="environment 2 brought nan in step/reward"):
        go_on()


def test_what_is_not_finite_is_left_out_where_that_is_asked_for(caplog: Any) -> None:
    """Case 61: the others go on, and the unrolls after it are none of its."""
    play = Play(VECTOR, unroll_length=4, burn_in=2, skips_bad=True)
    everyone = np.arange(NUM_ENVS)
    for step in range(200):
        play.step(everyone, np.nan if step in (30, 100) else None)
    assert caplog.text.count("brought nan in step/reward") >= 2
    for _ in range(50):
        unrolls, env_ids = play.batch()
        assert np.isfinite(unrolls.step.reward).all()
        for column, env_id in enumerate(env_ids):
            rewards = unrolls.step.reward[:, column].tolist()
            first = play.order[env_id].index(rewards[0])
            assert play.order[env_id][first : first + 7] == rewards


def test_unrolls_of_a_skipped_update_are_drawn_last() -> None:
    """Or the same bad unroll, of the highest priority, would be in the next batch again."""
    play = Play(VECTOR, unroll_length=4, burn_in=2)
    for _ in range(60):
        play.step(np.arange(NUM_ENVS))
    buffer, rng = play.source._buffer, np.random.default_rng(0)
    host = play.source.get()
    assert host.keys is not None
    keys = host.keys.copy()
    play.source.learned(keys, np.full(BATCH_SIZE, 1e6, np.float32))
    assert set(buffer.sample(BATCH_SIZE, rng).numbers) <= set(keys)
    play.source.release(host)
    assert play.source.get().keys is not None
    play.source.learned(keys, None)
    assert not set(buffer.sample(100, rng).numbers) & set(keys)


def test_importance_weights() -> None:
    """Case 83: finite and at most 1, the rarest unroll's being 1."""
    weights = importance_weights(np.array([0.4, 1e-12, 0.1]), 0.6)
    np.testing.assert_allclose(weights, [(1e-12 / 0.4) ** 0.6, 1, (1e-12 / 0.1) ** 0.6])
    assert importance_weights(np.array([0.4, 0.1]), 0.0).tolist() == [1, 1]
