"""One run: a learner with real actors, and the bare cost of its parts."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
from end_to_end_peers import cpu_seconds, megabytes

from seed_rl import devices, flags, specs
from seed_rl.agents import registry as agents
from seed_rl.config import LearnerConfig
from seed_rl.envs import registry as environments
from seed_rl.grpc import core as cores

# Of the learner's threads, by the kernel's names or those that Python gave them. What runs in
# TensorFlow's own threads is the network's, in inference and training.
_THREADS = {
    "inference": "inference_thread",
    "prefetch": "batch_thread",
    "MainThread": "train_thread",
    "grpc server": "server_threads",
    "seed_rl epoll": "server_threads",
    "tf_Compute": "tensorflow_threads",
    "python": "tensorflow_threads",
}


def measure(config: Any) -> dict[str, Any]:
    """One run of variant A with the learner in this process and actors in their own."""
    with tempfile.TemporaryDirectory() as folder:
        learner_config, environment_config, agent_config = flags.parse(
            [
                f"--logdir={folder}/run",
                f"--server_address=unix:{folder}/socket",
                f"--num_envs={config.actors * config.envs_per_actor}",
                f"--env_batch_size={config.envs_per_actor}",
                f"--total_environment_frames={10**12}",
                *shlex.split(config.a),
            ],
            LearnerConfig,
            environments.load(config.environment).Config,
            agents.load(config.agent).Config,
        )
        devices.start_tensorflow(learner_config.intra_op_threads, learner_config.inter_op_threads)
        from seed_rl.experiment import Experiment
        from seed_rl.learner import Learner

        experiment = Experiment(
            config.environment, environment_config, config.agent, agent_config, 0
        )
        learner = Learner(experiment, learner_config)
        run = _Run(config, learner)
        run.finish()
        floor = _floor(experiment, learner, config)
    seconds, steps = run.window["seconds"], run.window["steps"]
    learner_cpu = 1000 * run.window["learner_cpu"] / steps
    actor_cpu = 1000 * run.window["actor_cpu"] / steps
    return {
        "steps_s": steps / seconds,
        "frames_s": steps / seconds * experiment.num_action_repeats,
        "trained_frames_s": run.window["frames"] / seconds,
        "updates_s": run.window["updates"] / seconds,
        "policy_lag": float(np.mean(run.lags)),
        "cpu_s_per_1k": learner_cpu + actor_cpu,
        "learner_cpu_s_per_1k": learner_cpu,
        "actor_cpu_s_per_1k": actor_cpu,
        **{f"floor_{name}": value for name, value in floor.items()},
        "floor_cpu_s_per_1k": sum(floor.values()),
        "overhead": (learner_cpu + actor_cpu) / sum(floor.values()) - 1,
        **{
            name: 1000 * run.window.get(name, 0.0) / steps
            for name in dict.fromkeys([*_THREADS.values(), "other_threads"])
        },
        "start_secs": run.start_secs,
        "learner_rss_mb": run.learner_rss_mb,
        "actor_rss_mb": run.actor_rss_mb,
        "network": getattr(agent_config, "network", ""),
        "core": cores.choose(learner_config.core),
    }


class _Run:
    """Trains until the window is over, and what was seen in it."""

    def __init__(self, config: Any, learner: Any) -> None:
        self._config = config
        self._learner = learner
        self._stop = threading.Event()
        self._has_ended = False
        self._actors = [
            psutil.Popen(
                [
                    *(sys.executable, "-m", "seed_rl", "--run_mode=actor"),
                    *(f"--server_address={learner.address}", f"--task={task}"),
                ],
                stderr=subprocess.DEVNULL,
            )
            for task in range(config.actors)
        ]
        self.window: collections.Counter[str] = collections.Counter()
        self.lags: list[float] = []
        self.start_secs = self.learner_rss_mb = self.actor_rss_mb = 0.0

    def finish(self) -> None:
        """Returns when the window is over. The learner's status lines go nowhere."""
        self._note_lags()
        watcher = threading.Thread(target=self._watch)
        watcher.start()
        try:
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                self._learner.run(self._stop)
        finally:
            self._has_ended = True
            for actor in self._actors:
                actor.kill()
                actor.wait()
        watcher.join()
        if not self.window:
            raise RuntimeError(
                "an actor, or the learner, ended before the first update: run_local.sh with the "
                "same flags shows why"
            )

    def _note_lags(self) -> None:
        get = self._learner.prefetcher.get

        def noting(timeout: float) -> Any:
            batch = get(timeout)
            if batch is not None:
                self.lags.append(float(self._learner.num_updates - batch.versions.mean()))
            return batch

        self._learner.prefetcher.get = noting

    def _watch(self) -> None:
        this = psutil.Process()
        while not self._learner.num_updates:
            if self._has_ended or any(actor.poll() is not None for actor in self._actors):
                self._stop.set()
                return
            time.sleep(0.01)
        self.start_secs = time.time() - this.create_time()
        time.sleep(self._config.warmup_secs)
        before = self._counts()
        self.lags.clear()
        time.sleep(self._config.seconds)
        self.window = self._counts()
        self.window.subtract(before)
        self.learner_rss_mb = megabytes(this) - sum(megabytes(actor) for actor in self._actors)
        self.actor_rss_mb = max(megabytes(actor) for actor in self._actors)
        self._stop.set()

    def _counts(self) -> collections.Counter[str]:
        counts: Any = collections.Counter(
            {
                "seconds": time.perf_counter(),
                "steps": self._learner.loop.agent_steps,
                "frames": self._learner.num_frames,
                "updates": self._learner.num_updates,
                "learner_cpu": time.process_time(),
                "actor_cpu": sum(cpu_seconds(actor) for actor in self._actors),
            }
        )
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        for thread in psutil.Process().threads():
            with contextlib.suppress(OSError):  # it has just ended
                comm = pathlib.Path(f"/proc/self/task/{thread.id}/comm").read_text().strip()
                name = _THREADS.get(names.get(thread.id, comm), "other_threads")
                counts[name] += thread.user_time + thread.system_time
        return counts


def _floor(experiment: Any, learner: Any, config: Any) -> dict[str, float]:
    """CPU seconds per 1,000 agent steps of each part alone, on this thread of this process."""
    num_envs = config.envs_per_actor
    envs = experiment.family.make(experiment.environment_config, range(num_envs), 0)
    transition = envs.reset()
    rng = np.random.default_rng(0)

    def step() -> int:
        action = specs.map_nest(
            lambda spec: (
                rng.integers(0, spec.num_choices, num_envs).astype(spec.dtype)
                if specs.is_choice(spec)
                else rng.uniform(-1, 1, (num_envs, *spec.shape)).astype(spec.dtype)
            ),
            envs.specs.action,
        )
        envs.step(action)
        return num_envs

    columns = [np.concatenate([leaf] * config.actors) for leaf in specs.flatten(transition)]
    env_ids = np.arange(num_envs * config.actors, dtype=np.int32)
    # As many rows as a run answers at once.
    rows = max(1, round(learner.loop.rows / learner.loop.batches))

    def infer() -> int:
        learner.inference(env_ids, columns[0], columns[1], columns[3:], rows)
        return rows

    batch_size = experiment.agent_config.batch_size
    length = experiment.agent_config.unroll_length
    batch = learner.trainer.to_device(_zero_batch(learner.source.form, batch_size))

    # Steps of the environments that one update is for.
    ratio = getattr(experiment.agent_config, "replay_ratio", 1.0)

    def train() -> float:
        learner.trainer(batch)
        return batch_size * length / ratio

    floor = {
        name: _cpu_per_1k(part, config.part_secs)
        for name, part in {"environments": step, "inference": infer, "training": train}.items()
    }
    envs.close()
    return floor


def _zero_batch(form: Any, batch_size: int) -> Any:
    from seed_rl.experience import HostBatch

    return HostBatch(
        [spec.zeros(form.num_rows, batch_size) for spec in specs.flatten(form.steps)],
        [spec.zeros(batch_size) for spec in specs.flatten(form.state)],
        np.zeros(batch_size, np.int64),
        np.zeros(batch_size, np.int64),
        0,
        np.ones(batch_size, np.float32) if form.has_weights else None,
    )


def _cpu_per_1k(part: Callable[[], float], seconds: float) -> float:
    part()  # warms up
    this = psutil.Process()
    steps, start, cpu = 0.0, time.perf_counter(), cpu_seconds(this)
    while time.perf_counter() - start < seconds:
        steps += part()
    return 1000 * (cpu_seconds(this) - cpu) / steps
