"""The inference loop: from batches of the server to answers, unrolls and episode statistics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import numpy as np

from seed_rl import specs
from seed_rl.experience import BatchQueue, Stopped
from seed_rl.grpc.server import Batch, Server, ServerClosed
from seed_rl.inference import Inference
from seed_rl.metrics import Accumulator, EpisodeTracker, StageTimes
from seed_rl.types import StepType
from seed_rl.unrolls import UnrollStore

_logger = logging.getLogger(__name__)
# How often a wait for rows looks whether the program is stopping.
_POLL_SECS = 0.2


class InferenceLoop:
    """What the inference thread does. `run` is its body."""

    def __init__(
        self,
        server: Server,
        inference: Inference,
        store: UnrollStore,
        batches: BatchQueue,
        num_envs: int,
        version: Callable[[], int],
        metrics: Accumulator,
        stop: threading.Event,
    ) -> None:
        self._server = server
        self._inference = inference
        self._store = store
        self._batches = batches
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
            for _, episode in self._episodes.step(env_ids, step_type, raw_reward[: batch.size]):
                self._metrics.add_episode(episode)
            whole = self._store.append(
                env_ids, specs.flatten(answers.step), specs.flatten(answers.state), version
            )
        if len(whole):
            with self.times.measure("queue"):
                self._batches.put(self._store, whole)
            self._store.advance(whole)

    def _restart(self, env_ids: np.ndarray) -> None:
        again = env_ids[self._seen[env_ids]]
        if len(again):
            _logger.warning(
                "environments %s start anew, their unfinished unrolls are dropped", ranges(again)
            )
        self._seen[env_ids] = True
        self._store.restart(env_ids)


def ranges(ids: np.ndarray) -> str:
    """Sorted ids with runs shortened: '0-15, 18'."""
    ids = np.unique(ids)
    if not len(ids):
        return "none"
    runs = np.split(ids, np.flatnonzero(np.diff(ids) > 1) + 1)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
