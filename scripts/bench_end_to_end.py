#!/usr/bin/env python3
"""Measures a whole run: learner and real actors, against the bare cost of its parts.

    python scripts/bench_end_to_end.py                              # the default run
    python scripts/bench_end_to_end.py --b='--network=nature' --json

Each variant trains for `--seconds` after a warm-up; with `--b`, the two alternate `--rounds` times,
since machines are noisy and only figures of one run compare. The floor is what environments,
inference and training cost when each runs alone in the same process setting: whatever a run needs
beyond it is the framework's. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import psutil

from seed_rl import flags
from seed_rl.config import LearnerConfig, option
from seed_rl.errors import UserError


@dataclasses.dataclass(frozen=True)
class BenchConfig:
    """End-to-end benchmark."""

    environment: str = option("atari", "Environment family.")
    agent: str = option("vtrace", "Agent.")
    actors: int = option(2, "Actor processes.")
    envs_per_actor: int = option(16, "Environments of each.")
    a: str = option("", "Flags of the learner in variant A, in one string.")
    b: str | None = option(None, "Flags of variant B; none = only A is measured.")
    rounds: int = option(1, "How often each variant is measured.")
    warmup_secs: float = option(15.0, "Seconds before the measurement starts.")
    seconds: float = option(30.0, "Seconds of each measurement.")
    part_secs: float = option(5.0, "Seconds for which each bare part is measured.")
    json: bool = option(False, "Print one line of JSON last.")
    worker: bool = option(False, "Measure variant A once, in this process, and print JSON only.")


def _cpu_seconds(process: psutil.Process) -> float:
    times = [process.cpu_times(), *(child.cpu_times() for child in process.children(True))]
    return sum(part.user + part.system for part in times)


def _megabytes(process: psutil.Process) -> float:
    return process.memory_info().rss / 2**20


def measure(config: BenchConfig) -> dict[str, Any]:
    """One run of variant A with the learner in this process and actors in their own."""
    from seed_rl import devices
    from seed_rl.agents import registry as agents
    from seed_rl.envs import registry as environments
    from seed_rl.grpc import core as cores

    environment_class = environments.load(config.environment).Config
    agent_class = agents.load(config.agent).Config
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
            environment_class,
            agent_class,
        )
        devices.start_tensorflow(learner_config.intra_op_threads, learner_config.inter_op_threads)
        from seed_rl.experiment import Experiment
        from seed_rl.learner import Learner

        experiment = Experiment(
            config.environment, environment_config, config.agent, agent_config, 0
        )
        learner = Learner(experiment, learner_config)
        stop = threading.Event()
        window: dict[str, Any] = {}
        actors = [
            psutil.Popen(
                [
                    *(sys.executable, "-m", "seed_rl", "--run_mode=actor"),
                    *(f"--server_address={learner.address}", f"--task={task}"),
                ],
                stderr=subprocess.DEVNULL,
            )
            for task in range(config.actors)
        ]

        def watch() -> None:
            time.sleep(config.warmup_secs)
            before = _snapshot(learner, actors)
            time.sleep(config.seconds)
            window.update(_difference(before, _snapshot(learner, actors)))
            stop.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with open(os.devnull, "w") as nowhere:
                out, sys.stdout = sys.stdout, nowhere
                learner.run(stop)
                sys.stdout = out
        finally:
            for actor in actors:
                actor.kill()
                actor.wait()
        watcher.join()
        floor = _floor(experiment, learner, config)
    steps_s = window["steps"] / window["seconds"]
    learner_cpu = 1000 * window["learner_cpu"] / window["steps"]
    actor_cpu = 1000 * window["actor_cpu"] / window["steps"]
    return {
        "steps_s": steps_s,
        "frames_s": steps_s * experiment.num_action_repeats,
        "trained_frames_s": window["frames"] / window["seconds"],
        "updates_s": window["updates"] / window["seconds"],
        "learner_cpu_s_per_1k": learner_cpu,
        "actor_cpu_s_per_1k": actor_cpu,
        **{f"{name}_cpu_s_per_1k": value for name, value in floor.items()},
        "floor_cpu_s_per_1k": sum(floor.values()),
        "overhead": (learner_cpu + actor_cpu) / sum(floor.values()) - 1,
        "learner_rss_mb": window["learner_rss_mb"],
        "actor_rss_mb": window["actor_rss_mb"],
        "network": getattr(agent_config, "network", ""),
        "core": cores.choose(learner_config.core),
    }


def _snapshot(learner: Any, actors: list[Any]) -> dict[str, float]:
    this = psutil.Process()
    return {
        "seconds": time.perf_counter(),
        "steps": learner.loop.agent_steps,
        "frames": learner.num_frames,
        "updates": learner.num_updates,
        "learner_cpu": time.process_time(),
        "actor_cpu": sum(_cpu_seconds(actor) for actor in actors),
        "learner_rss_mb": _megabytes(this),
        "actor_rss_mb": max(_megabytes(actor) for actor in actors),
    }


def _difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {
        name: value if name.endswith("_mb") else value - before[name]
        for name, value in after.items()
    }


def _floor(experiment: Any, learner: Any, config: BenchConfig) -> dict[str, float]:
    """CPU seconds per 1,000 agent steps of each part alone, on this thread of this process."""
    import numpy as np

    from seed_rl import specs

    num_envs = config.envs_per_actor
    environments = experiment.family.make(experiment.environment_config, range(num_envs), 0)
    transition = environments.reset()
    rng = np.random.default_rng(0)

    def step() -> int:
        action = specs.map_nest(
            lambda spec: rng.integers(0, spec.num_choices, num_envs).astype(spec.dtype),
            environments.specs.action,
        )
        environments.step(action)
        return num_envs

    rows = num_envs * config.actors
    columns = [np.concatenate([leaf] * config.actors) for leaf in specs.flatten(transition)]
    env_ids = np.arange(rows, dtype=np.int32)

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
        for name, part in {"environment": step, "inference": infer, "train": train}.items()
    }
    environments.close()
    return floor


def _zero_batch(form: Any, batch_size: int) -> Any:
    import numpy as np

    from seed_rl import specs
    from seed_rl.experience import HostBatch

    return HostBatch(
        [spec.zeros(form.num_rows, batch_size) for spec in specs.flatten(form.steps)],
        [spec.zeros(batch_size) for spec in specs.flatten(form.state)],
        np.zeros(batch_size, np.int64),
        np.zeros(batch_size, np.int64),
        0,
        np.ones(batch_size, np.float32) if form.has_weights else None,
    )


def _cpu_per_1k(part: Any, seconds: float) -> float:
    part()  # warms up
    steps, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        steps += part()
    return 1000 * (time.process_time() - cpu) / steps


def _run_worker(config: BenchConfig, variant: str) -> dict[str, Any]:
    words = [
        f"--{field.name}={getattr(config, field.name)}"
        for field in dataclasses.fields(config)
        if field.name not in ("a", "b", "json", "worker")
    ]
    command = [sys.executable, __file__, *words, f"--a={variant}", "--worker=true"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def _median(results: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: value
        if isinstance(value, str)
        else statistics.median(result[name] for result in results)
        for name, value in results[0].items()
    }


def main(argv: list[str]) -> int:
    if {"--help", "-h"} & set(argv):
        print(__doc__, flags.usage(BenchConfig))
        return 0
    try:
        (config,) = flags.parse(argv, BenchConfig)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if config.worker:
        print(json.dumps(measure(config)))
        return 0
    variants = {"A": config.a} if config.b is None else {"A": config.a, "B": config.b}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    for turn in range(config.rounds):
        for name, variant in variants.items():
            print(f"round {turn + 1}/{config.rounds}, variant {name}: {variant or 'defaults'}")
            results[name].append(_run_worker(config, variant))
    medians = {name: _median(runs) for name, runs in results.items()}
    for key, value in medians["A"].items():
        cells = [medians[name][key] for name in medians]
        if isinstance(value, str):
            print(f"{key:28s}" + "".join(f"{cell:>12s}" for cell in cells))
            continue
        ratio = f"   B/A {cells[1] / cells[0]:.3f}" if len(cells) > 1 and cells[0] else ""
        print(f"{key:28s}" + "".join(f"{cell:12,.3f}" for cell in cells) + ratio)
    if config.json:
        both = {"b": medians["B"]} if "B" in medians else {}
        print(json.dumps({**medians["A"], **both}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
