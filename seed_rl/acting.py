"""The inference loop: from batches of the server to answers, unrolls and episode statistics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import numpy as np

from seed_rl import specs
from seed_rl.experience import Source, Stopped
from seed_rl.grpc.server import Batch, Server, ServerClosed
from seed_rl.inference import Answers, Inference
from seed_rl.metrics import Accumulator, EpisodeTracker, StageTimes
from seed_rl.types import StepType

_logger = logging.getLogger(__name__)
# How often a wait for rows looks whether the program is stopping.
_POLL_SECS = 0.2


class InferenceLoop:
    """What the inference thread does. `run` is its body."""

    def __init__(
        self,
        server: Server,
        inference: Inference,
        source: Source,
        num_envs: int,
        num_eval_envs: int,
        version: Callable[[], int],
        metrics: Accumulator,
        stop: threading.Event,
    ) -> None:
        self._server = server
        self._inference = inference
        self._source = source
        self._num_training_envs = num_envs - num_eval_envs
        self._version = version
        self._metrics = metrics
        self._stop = stop
        self._episodes = EpisodeTracker(num_envs)
        self._seen = np.zeros(num_envs, bool)
        self.times = StageTimes()
        self.agent_steps = 0  # transitions, so without FIRST rows
        self.rows = 0
        self.batches = 0

    def run(self) -> None:
        """Answers batches until the program stops, then raises Stopped."""
        while not self._stop.is_set():
            try:
                with self.times.measure("wait"):
                    batch = self._server.next_batch(_POLL_SECS)
                if batch is not None:
                    self._answer(batch)
            except ServerClosed:
                break
        raise Stopped

    def _answer(self, batch: Batch) -> None:
        env_ids, step_type, reward, raw_reward, *observation = batch.columns
        version = self._version()
        with self.times.measure("infer"):
            answers = self._inference(env_ids, step_type, reward, observation, batch.size)
        # Actors first: they step while the rest is done here.
        with self.times.measure("reply"):
            self._server.reply(batch, specs.flatten(answers.step.action))
        with self.times.measure("unroll"):
            env_ids, step_type = env_ids[: batch.size], step_type[: batch.size]
            if batch.restarted.any():
                self._restart(env_ids[batch.restarted])
            self.rows += batch.size
            self.batches += 1
            self.agent_steps += int(np.count_nonzero(step_type != StepType.FIRST))
            for env_id, episode in self._episodes.step(
                env_ids, step_type, raw_reward[: batch.size]
            ):
                self._metrics.add_episode(episode, env_id >= self._num_training_envs)
            observation = [column[: batch.size] for column in observation]
            env_ids, answers, observation = self._of_training(env_ids, answers, observation)
            whole = self._source.append(env_ids, answers, observation, version)
        if len(whole):
            with self.times.measure("queue"):
                self._source.put(whole)

    def _of_training(
        self, env_ids: np.ndarray, answers: Answers, observation: list[np.ndarray]
    ) -> tuple[np.ndarray, Answers, list[np.ndarray]]:
        """Without the rows of evaluation environments."""
        training = env_ids < self._num_training_envs
        if training.all():
            return env_ids, answers, observation

        def select(column: np.ndarray) -> np.ndarray:
            return column[training]

        return (
            env_ids[training],
            specs.map_nest(select, answers),
            [select(column) for column in observation],
        )

    def _restart(self, env_ids: np.ndarray) -> None:
        again = env_ids[self._seen[env_ids]]
        if len(again):
            _logger.warning(
                "environments %s start anew, their unfinished unrolls are dropped", ranges(again)
            )
        self._seen[env_ids] = True
        self._source.restart(env_ids[env_ids < self._num_training_envs])


def ranges(ids: np.ndarray) -> str:
    """Sorted ids with runs shortened: '0-15, 18'."""
    ids = np.unique(ids)
    if not len(ids):
        return "none"
    runs = np.split(ids, np.flatnonzero(np.diff(ids) > 1) + 1)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
