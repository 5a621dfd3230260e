"""The learner: serves inference, collects unrolls, trains, saves and reports."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import sys
import threading
import time
from typing import IO, Any

import tensorflow as tf

from seed_rl import paths
from seed_rl.acting import InferenceLoop
from seed_rl.agent import Agent
from seed_rl.checkpoints import CheckpointError, Checkpoints
from seed_rl.config import LearnerConfig
from seed_rl.experience import Prefetcher, Source
from seed_rl.experiment import CHECKPOINT_FOLDER, LOCK_FILE, Experiment, LogdirError
from seed_rl.grpc import core as cores
from seed_rl.grpc.codec import action_layout, step_layout
from seed_rl.grpc.server import make_server
from seed_rl.inference import Inference
from seed_rl.metrics import Accumulator, StageTimes
from seed_rl.optimizers import Optimizer
from seed_rl.queued import QueuedSource
from seed_rl.replayed import ReplayedSource
from seed_rl.reporter import Reporter
from seed_rl.summaries import SummaryWriter
from seed_rl.threads import ThreadGroup
from seed_rl.training import DeviceBatch, Trainer

_logger = logging.getLogger(__name__)
# How often the train loop looks, while it waits for a batch, whether something else is due.
_POLL_SECS = 0.2
_JOIN_SECS = 2.0
# At CPython's default of 5 ms the threads that wait on each other here spend their time waiting
# for the interpreter lock.
_SWITCH_INTERVAL_SECS = 1e-4


class Learner:
    """One run of training. The constructor builds, restores and starts to listen."""

    def __init__(self, experiment: Experiment, config: LearnerConfig) -> None:
        self._config = config
        changes = experiment.compare_logdir(config.logdir)
        single = experiment.environment_specs()
        agent_config = experiment.agent_config
        agent = experiment.make_agent()
        self._lock_logdir()
        self._num_action_repeats = experiment.num_action_repeats
        # Of a replay that is no shortcoming.
        self._lag_name = "replay_age" if agent.replay else "policy_lag"
        # Each step that environments make is trained on so often.
        ratio = agent.replay.replay_ratio if agent.replay else 1.0
        steps_per_update = agent_config.batch_size * agent.unroll_length / ratio
        total_updates = math.ceil(
            config.total_environment_frames / (steps_per_update * self._num_action_repeats)
        )
        self.optimizer = Optimizer(agent_config, list(agent.trainable_variables), total_updates)
        self._frames = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._checkpoint_folder = os.path.join(config.logdir, CHECKPOINT_FOLDER)
        self._checkpoints = Checkpoints(
            self._checkpoint_folder,
            {
                "agent": agent,
                "optimizer": self.optimizer,
                "frames": self._frames,
                "updates": self._updates,
            },
        )
        self._restore(agent, changes)
        self._threads = ThreadGroup(threading.Event())
        stop = self._threads.stop
        self.inference = Inference(
            agent,
            single,
            config.num_envs,
            config.inference_capacity,
            experiment.num_stacked_frames,
            config.seed,
            config.num_eval_envs,
        )
        self.source = self._make_source(experiment, agent, stop)
        if self._saved_updates is not None:
            self.source.restore(self._saved_updates)
        # Only now: a start that was refused leaves the settings of the run as they were.
        experiment.write(config.logdir)
        for change in changes:
            _logger.warning("resuming with a changed setting: %s", change)
        self.trainer = Trainer(agent, self.optimizer, agent_config.batch_size, self.source.form)
        self.prefetcher = Prefetcher(self.source, self.trainer.to_device, stop)
        self._metrics = Accumulator()
        self._times = StageTimes()
        self._server = make_server(
            config.server_address,
            step_layout(single.observation),
            action_layout(single.action),
            json.dumps(
                {
                    **experiment.to_json(),
                    "num_envs": config.num_envs,
                    "env_batch_size": config.env_batch_size,
                    "env_groups": config.env_groups,
                }
            ),
            num_envs=config.num_envs,
            batch_size=config.inference_capacity,
            batch_timeout_secs=config.inference_timeout_ms / 1000,
            token=config.token or None,
            core=config.core,
        )
        _logger.info("transport: %s", cores.summary(config.core))
        self.loop = InferenceLoop(
            self._server,
            self.inference,
            self.source,
            config.num_envs,
            config.num_eval_envs,
            lambda: self.num_updates,
            self._metrics,
            stop,
        )
        self._writer = SummaryWriter(config.logdir)
        self.reporter = Reporter(
            config,
            self._metrics,
            {"learner": self._times, "inference": self.loop.times},
            self.loop,
            self._server,
            self._writer,
            self._num_action_repeats,
            self.source,
            experiment.reference_scores(),
        )

    def _make_source(self, experiment: Experiment, agent: Agent, stop: threading.Event) -> Source:
        num_envs = self._config.num_envs - self._config.num_eval_envs
        batch_size = experiment.agent_config.batch_size
        if agent.replay is None:
            return QueuedSource(
                num_envs,
                batch_size,
                agent.unroll_length,
                self.inference.step_specs,
                self.inference.state_specs,
                stop,
            )
        return ReplayedSource(
            agent,
            agent.replay,
            num_envs,
            batch_size,
            experiment.environment_specs().observation,
            experiment.num_stacked_frames,
            self.inference.step_specs,
            self.inference.state_specs,
            self._config.seed,
            self._config.max_bad_updates > 0,
            self._checkpoint_folder,
            stop,
        )

    @property
    def address(self) -> str:
        """Where actors reach it; with the port that the system chose where 0 was asked for."""
        return self._server.address

    def run(self, stop: threading.Event) -> None:
        """Trains to the last frame, or until `stop` is set; saves in both cases.

        Raises what failed first, in whatever thread. Nothing is saved then: the weights may be
        what failed.
        """
        sys.setswitchinterval(_SWITCH_INTERVAL_SECS)
        self._threads.start("inference", self.loop.run)
        self._threads.start("prefetch", self.prefetcher.run)
        for name, body in self.source.threads().items():
            self._threads.start(name, body)
        finished = False
        try:
            self._train(stop)
            self._threads.raise_failure()
            self.reporter.report(self.num_frames)
            self._save()
            finished = self.num_frames >= self._config.total_environment_frames
        finally:
            self._threads.stop.set()
            self._server.close(finished)
            self._threads.join(_JOIN_SECS)
            self._writer.close()
            if self._lock_file is not None:
                self._lock_file.close()
        _logger.info(
            "%s at %s frames", "finished" if finished else "stopped", f"{self.num_frames:,}"
        )

    def _train(self, stop: threading.Event) -> None:
        saved = time.monotonic()
        bad_updates = 0
        while self.num_frames < self._config.total_environment_frames:
            if stop.is_set() or self._threads.stop.is_set():
                return
            with self._times.measure("report"):
                self.reporter.report_if_due(self.num_frames)
            if time.monotonic() - saved > self._config.save_checkpoint_secs:
                with self._times.measure("save"):
                    self._save_or_go_on()
                saved = time.monotonic()
            with self._times.measure("wait"):
                batch = self.prefetcher.get(_POLL_SECS)
            if batch is None:
                continue
            lag = self.num_updates - batch.versions
            with self._times.measure("train"):
                scalars, priorities = self.trainer(batch)
            self.source.learned(batch.keys, priorities if scalars["applied"] else None)
            bad_updates = 0 if scalars["applied"] else bad_updates + 1
            if bad_updates:
                self._explain_bad_update(batch, bad_updates)
            self.num_updates += 1
            self.num_frames += batch.num_transitions * self._num_action_repeats
            self._metrics.add(
                {
                    **{f"train/{name}": value for name, value in scalars.items()},
                    f"{self._lag_name}/mean": float(lag.mean()),
                    f"{self._lag_name}/max": float(lag.max()),
                }
            )

    def _explain_bad_update(self, batch: DeviceBatch, bad_updates: int) -> None:
        cause = self.trainer.explain(batch)
        message = f"update {self.num_updates}: loss or gradient is not finite; {cause}"
        if bad_updates > self._config.max_bad_updates:
            raise FloatingPointError(
                f"{message}; the weights are as before it; --max_bad_updates=N skips N in a row"
            )
        _logger.warning("%s; skipped", message)

    def _lock_logdir(self) -> None:
        """Raises LogdirError where another learner runs in the log dir.

        A remote log dir can't be locked: whoever starts learners sees to it that there is one.
        """
        paths.makedirs(self._config.logdir)
        self._lock_file: IO[str] | None = None
        if paths.is_remote(self._config.logdir):
            return
        path = os.path.join(self._config.logdir, LOCK_FILE)
        self._lock_file = open(path, "w")  # noqa: SIM115 - held, and so open, for life
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogdirError(
                f"another learner runs in {self._config.logdir}; choose another --logdir"
            ) from None

    def _restore(self, agent: Any, changes: list[str]) -> None:
        try:
            path = self._checkpoints.restore_latest()
        except CheckpointError as error:
            if not changes:
                raise
            raise CheckpointError(
                f"can't resume with other settings: {'; '.join(changes)}. Start with those of "
                f"before, or choose another --logdir\n{error}"
            ) from error
        if path:
            _logger.info("resuming from %s at %s frames", path, f"{int(self._frames):,}")
            if self._config.init_checkpoint:
                _logger.info("so --init_checkpoint is not used: it is for new runs")
        elif self._config.init_checkpoint:
            Checkpoints(self._config.logdir, {"agent": agent}).restore(self._config.init_checkpoint)
            _logger.info("starting from the weights of %s", self._config.init_checkpoint)
        self.num_frames = int(self._frames)
        self.num_updates = int(self._updates)
        self._saved_updates = self.num_updates if path else None

    def _save_or_go_on(self) -> None:
        """A full disk or an absent network folder may be mended before the next time."""
        try:
            self._save()
        except (OSError, tf.errors.OpError) as error:
            _logger.error(
                "could not save a checkpoint, trying again in %.0f s: %s",
                self._config.save_checkpoint_secs,
                error,
            )

    def _save(self) -> None:
        if self._saved_updates == self.num_updates and not self.source.has_news:
            return
        self._frames.assign(self.num_frames)
        self._updates.assign(self.num_updates)
        with self.source.saving(self.num_updates):
            _logger.info("saved %s", self._checkpoints.save(self.num_updates))
        self._saved_updates = self.num_updates
