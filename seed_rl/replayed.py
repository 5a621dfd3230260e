"""Trains on unrolls sampled from a prioritized replay, at a fixed ratio to what is acted.

"Recurrent Experience Replay in Distributed Reinforcement Learning", Kapturowski et al. 2019.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from seed_rl import paths, specs
from seed_rl.agent import Agent
from seed_rl.errors import UserError, as_user_error
from seed_rl.experience import HostBatch, Stopped, wait_for
from seed_rl.inference import Answers, Step
from seed_rl.replay.buffer import ReplayBuffer, replay_bytes
from seed_rl.replay.limiter import LimiterState, RateLimiter
from seed_rl.replay.memory import available_bytes, describe_bytes, require_memory
from seed_rl.replay.storage import ReplayStorage
from seed_rl.replay_config import ReplayConfig
from seed_rl.replay_form import form, num_rows_before
from seed_rl.specs import ArraySpec, Nest
from seed_rl.unrolls import UnrollStore

_logger = logging.getLogger(__name__)
_POLL_SECS = 0.1


class ReplayedSource:
    """Implements seed_rl.experience.Source for agents with a replay.

    Every step is stored once, as seed_rl.replay_form says.
    """

    def __init__(
        self,
        agent: Agent,
        config: ReplayConfig,
        num_envs: int,
        batch_size: int,
        observation: Nest,
        num_stacked_frames: int,
        step_specs: Step,
        state_specs: Nest,
        seed: int,
        skips_bad: bool,
        folder: str,
        stop: threading.Event,
    ) -> None:
        """`skips_bad`: an unroll that is not finite is left out, instead of ending the program.

        `folder` is where checkpoints are.
        """
        if config.save_replay and paths.is_remote(folder):
            raise UserError(
                f"--save_replay can't write to {folder}; leave it out, or let --logdir be a folder "
                "of this machine"
            )
        length, burn_in = agent.unroll_length, agent.burn_in
        self.form = form(length, burn_in, observation, num_stacked_frames, step_specs, state_specs)
        columns, states = specs.flatten(self.form.steps), specs.flatten(state_specs)
        self._config = config
        self._batch_size = batch_size
        self._length = length
        self._num_columns = len(columns)
        self._observation_specs = specs.flatten(observation)
        size = config.replay_buffer_size
        before = num_rows_before(num_stacked_frames)
        shape = columns, states, num_envs, length, burn_in, before, size
        num_bytes = replay_bytes(*shape)
        _logger.info(
            "replay: %s unrolls of %d steps, %s", f"{size:,}", length, describe_bytes(num_bytes)
        )
        if config.check_replay_memory:
            unroll_bytes = replay_bytes(*shape[:-1], size + 1) - num_bytes
            with as_user_error(ValueError):
                require_memory(
                    num_bytes,
                    unroll_bytes,
                    size,
                    config.replay_buffer_min_size,
                    available_bytes(),
                )
        try:
            self._buffer = ReplayBuffer(*shape, config.priority_exponent)
        except (MemoryError, ValueError) as error:  # more than numpy can address, even
            raise UserError(f"--replay_buffer_size={size} can't be allocated: {error}") from error
        self._lock = threading.Lock()  # guards the buffer
        # As many more unrolls than the ratio allows are let in before actors have to wait.
        self.limiter = RateLimiter(
            config.replay_ratio,
            config.replay_buffer_min_size,
            batch_size,
            slack=2 * batch_size,
            stop=stop,
        )
        self._storage: ReplayStorage | None = None
        if config.save_replay:
            # What block numbers and arrays depend on, and what priorities are raised to.
            settings: dict[str, float | str] = {
                "--unroll_length": length,
                "--burn_in": burn_in,
                "--replay_buffer_size": size,
                "--num_envs less --num_eval_envs": num_envs,
                "--num_stacked_frames": num_stacked_frames,
                "--priority_exponent": config.priority_exponent,
                "what a step consists of": ", ".join(map(str, columns)),
                "the recurrent state": ", ".join(map(str, states)),
            }
            self._storage = ReplayStorage(
                os.path.join(folder, "replay"), self._buffer, self._lock, settings
            )
        self._skips_bad = skips_bad
        self._stop = stop
        self._rng = np.random.default_rng(seed)
        extras = specs.flatten(step_specs.extras)
        self._store = UnrollStore(
            num_envs,
            length,
            [*columns, *extras],
            states,
            state_position=self._buffer.state_position + 1,
        )
        self._is_start = np.ones(num_envs, bool)
        self._initial_priorities = _trace_priorities(agent, length + 1, step_specs.extras)
        self._free: queue.Queue[HostBatch] = queue.Queue(1)
        self._free.put(
            HostBatch(
                [spec.zeros(self.form.num_rows, batch_size) for spec in columns],
                [spec.zeros(batch_size) for spec in states],
                np.zeros(batch_size, np.int64),
                np.zeros(batch_size, np.int64),
                0,
                np.ones(batch_size, np.float32),
                np.zeros(batch_size, np.int64),
            )
        )
        self._transitions = 0  # put in since the last batch was taken
        # Those that went with each batch that was taken but not learned from yet.
        self._taken: collections.deque[int] = collections.deque()
        self._num_learned = 0  # unrolls, ever

    def restart(self, env_ids: np.ndarray) -> None:
        self._store.restart(env_ids)
        self._is_start[env_ids] = True

    def append(
        self, env_ids: np.ndarray, answers: Answers, observation: Sequence[np.ndarray], version: int
    ) -> np.ndarray:
        step = answers.step
        seen = [
            column.reshape(len(column), *spec.shape)
            for column, spec in zip(observation, self._observation_specs, strict=True)
        ]
        columns = [
            step.step.step_type,
            step.step.reward,
            *seen,
            *specs.flatten(step.action),
            *specs.flatten(step.extras),
        ]
        return self._store.append(env_ids, columns, specs.flatten(answers.state), version)

    def put(self, env_ids: np.ndarray) -> None:
        columns = [column[env_ids] for column in self._store.steps]
        priorities = self._priorities(columns)
        finite = _finite_rows([*columns, priorities])
        if not finite.all():
            self._refuse(env_ids, columns, finite)
        self._insert(env_ids[finite], [column[finite] for column in columns], priorities[finite])
        # The next unroll of an environment can't go on from one that is not there.
        self._is_start[env_ids] = ~finite
        self._store.advance(env_ids)

    def _insert(
        self, env_ids: np.ndarray, columns: list[np.ndarray], priorities: np.ndarray
    ) -> None:
        # Row 0 is the last one of the block before.
        rows = [column[:, 1:] for column in columns[: self._num_columns]]
        states = [state[env_ids] for state in self._store.states]
        versions = self._store.versions[env_ids, 1]
        self.limiter.wait_to_insert()
        with self._lock:
            before = self._buffer.num_inserted
            self._buffer.insert(
                env_ids, rows, states, self._is_start[env_ids], priorities, versions
            )
            inserted = self._buffer.num_inserted - before
            self._transitions += len(env_ids) * self._length
            self.limiter.add_inserted(inserted)

    def _priorities(self, columns: list[np.ndarray]) -> np.ndarray:
        step_type, reward, *_ = columns
        arrays = [step_type, reward, *columns[self._num_columns :]]
        priorities = self._initial_priorities(
            *[tf.constant(array.swapaxes(0, 1)) for array in arrays]
        )
        return np.asarray(priorities, np.float64)

    def _refuse(self, env_ids: np.ndarray, columns: list[np.ndarray], finite: np.ndarray) -> None:
        """Tells of the first unroll that is not finite; it would spoil the weights, some day.

        Raises FloatingPointError where none may be skipped.
        """
        row = int(np.argmin(finite))
        message = f"the network's answers to environment {env_ids[row]} are not finite"
        names = specs.paths(self.form.steps)
        for name, column in zip(names, columns[: self._num_columns], strict=True):
            bad = np.argwhere(~np.isfinite(column[row]))
            if len(bad):
                message = (
                    f"environment {env_ids[row]} brought {column[row][tuple(bad[0])]} in {name} at "
                    f"step {bad[0][0]} of its unroll"
                )
                break
        if not self._skips_bad:
            raise FloatingPointError(f"{message}; --max_bad_updates=1 leaves such unrolls out")
        _logger.warning("%s; left out", message)

    def ask(self) -> None:
        """Nothing waits for it: the ratio says how far acting may be ahead."""

    def get(self) -> HostBatch:
        buffers = wait_for(self._free, self._stop)
        self.limiter.wait_to_sample()
        assert buffers.keys is not None
        assert buffers.weights is not None
        with self._waiting_for_unrolls():
            sample = self._buffer.sample(self._batch_size, self._rng)
            self._buffer.gather(sample.numbers, buffers.steps, buffers.states)
            buffers.env_ids[:] = self._buffer.env_ids(sample.numbers)
            buffers.versions[:] = self._buffer.versions(sample.numbers)
            transitions, self._transitions = self._transitions, 0
            self._taken.append(transitions)
        buffers.keys[:] = sample.numbers
        buffers.weights[:] = importance_weights(
            sample.probabilities, self._config.importance_sampling_exponent
        )
        return buffers._replace(num_transitions=transitions)

    @contextlib.contextmanager
    def _waiting_for_unrolls(self) -> Iterator[None]:
        """Holds the lock, once there are any: where environments start anew again and again there
        may be none.
        """
        while not self._stop.is_set():
            with self._lock:
                if self._buffer.num_unrolls:
                    yield
                    return
            self._stop.wait(_POLL_SECS)
        raise Stopped

    def release(self, batch: HostBatch) -> None:
        self._free.put_nowait(batch)

    def learned(self, keys: np.ndarray | None, priorities: np.ndarray | None) -> None:
        assert keys is not None
        if priorities is None:
            # Of what gave a bad update, the next draw should have none.
            priorities = np.zeros(len(keys))
        with self._lock:
            self._taken.popleft()
            self._num_learned += len(keys)
            self._buffer.update(keys, priorities.astype(np.float64))

    @property
    def has_news(self) -> bool:
        return self._storage is not None and self._storage.has_news

    def saving(self, number: int) -> contextlib.AbstractContextManager[None]:
        if self._storage is None:
            return contextlib.nullcontext()
        return self._storage.saving(number, self._counters)

    def _counters(self) -> dict[str, float]:
        """As if the batches that are not learned from had not been taken: they are not saved."""
        state = self.limiter.state._replace(num_sampled=self._num_learned)
        return {
            "num_inserted": state.num_inserted,
            "surplus": self.limiter.surplus(state),
            "transitions": self._transitions + sum(self._taken),
        }

    def restore(self, number: int) -> None:
        least = self._config.replay_buffer_min_size
        counters = self._storage.restore(number) if self._storage else None
        num_unrolls = self._buffer.num_unrolls
        if counters is not None:
            self._transitions = int(counters["transitions"])
            state = LimiterState(int(counters["num_inserted"]), 0)
            # So that a ratio which was changed holds from now on, not for what is past.
            self._num_learned = round(counters["surplus"] - self.limiter.surplus(state))
            self.limiter.restore(state._replace(num_sampled=self._num_learned))
        if num_unrolls < least:
            # Also where little was saved. The ratio begins anew, as the minimum does.
            self._num_learned = 0
            self.limiter.restore(LimiterState(num_unrolls, 0))
            _logger.info(
                "%s unrolls in the replay: training waits for %s%s",
                f"{num_unrolls:,}",
                f"{least:,}",
                "" if self._storage else ", which it does not with --save_replay",
            )

    def threads(self) -> Mapping[str, Callable[[], None]]:
        storage = self._storage
        return {"replay": lambda: storage.run(self._stop)} if storage else {}

    def scalars(self) -> dict[str, float]:
        num_inserted, num_sampled = self.limiter.state
        scalars = {"replay/unrolls": float(self._buffer.num_unrolls)}
        if num_inserted > self._config.replay_buffer_min_size:
            scalars["replay/ratio"] = num_sampled / (
                num_inserted - self._config.replay_buffer_min_size
            )
        return scalars

    def progress(self) -> str:
        num_inserted, _ = self.limiter.state
        least = self._config.replay_buffer_min_size
        return "" if num_inserted >= least else f"replay {num_inserted:,}/{least:,} unrolls"


def _finite_rows(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Of arrays `[n, ...]`: bool `[n]`, whether all numbers there are finite."""
    finite = np.ones(len(arrays[0]), bool)
    for array in arrays:
        if array.dtype.kind == "f":
            finite &= np.isfinite(array).reshape(len(array), -1).all(axis=1)
    return finite


def importance_weights(probabilities: np.ndarray, exponent: float) -> np.ndarray:
    """Weights `[B]` of unrolls sampled with these probabilities, at most 1.

    Equation of section 3.4 of "Prioritized Experience Replay", Schaul et al. 2016, in which the
    size of the replay cancels out.
    """
    return (probabilities.min() / probabilities) ** exponent


def _trace_priorities(agent: Agent, num_rows: int, extras: dict[str, ArraySpec]) -> Any:
    def priorities(step_type: tf.Tensor, reward: tf.Tensor, *leaves: tf.Tensor) -> tf.Tensor:
        return agent.initial_priorities(step_type, reward, specs.unflatten(extras, list(leaves)))

    return tf.function(
        priorities,
        autograph=False,
        input_signature=[
            tf.TensorSpec([num_rows, None], tf.uint8),
            tf.TensorSpec([num_rows, None], tf.float32),
            *[
                tf.TensorSpec([num_rows, None, *spec.shape], spec.dtype)
                for spec in specs.flatten(extras)
            ],
        ],
    ).get_concrete_function()
