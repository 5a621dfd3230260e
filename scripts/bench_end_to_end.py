#!/usr/bin/env python3
"""Measures a whole run: learner and real actors, against the bare cost of its parts.

    python scripts/bench_end_to_end.py                              # Pong, Nature CNN, 32 x 20
    python scripts/bench_end_to_end.py --b='--network=shallow' --json
    python scripts/bench_end_to_end.py --peer=sample_factory --peer_python=VENV/bin/python

Each variant, and the peer if one is named, trains for `--seconds` after a warm-up; they take
turns for `--rounds`, since machines are noisy and only figures of one run compare. The floor is
what environments, inference and training cost when each runs alone in the same process setting:
whatever a run needs beyond it is the framework's. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import signal
import statistics
import subprocess
import sys
from typing import Any

import end_to_end_peers

from seed_rl import flags
from seed_rl.config import option, require
from seed_rl.errors import UserError

_NATURE = "--network=nature --batch_size=32 --unroll_length=20"


@dataclasses.dataclass(frozen=True)
class BenchConfig:
    """End-to-end benchmark."""

    environment: str = option("atari", "Environment family.")
    agent: str = option("vtrace", "Agent.")
    actors: int = option(2, "Actor processes.")
    envs_per_actor: int = option(16, "Environments of each.")
    a: str = option(_NATURE, "Flags of the learner in variant A, in one string.")
    b: str | None = option(None, "Flags of variant B; none = only A is measured.")
    peer: str = option(
        "sample_factory",
        "What else is measured where --peer_python is given.",
        choices=end_to_end_peers.NAMES,
    )
    peer_python: str | None = option(
        None,
        "Python of a virtual environment with the peer. It has: "
        "sample_factory: torch==2.13.0 sample-factory==2.1.1 gymnasium==0.29.1 shimmy==0.2.1 "
        "ale-py==0.8.1 numpy==1.26.4 'opencv-python-headless<4.12', then ale-import-roms FOLDER. "
        "sb3: torch==2.13.0 stable-baselines3==2.9.2 ale-py. rllib: 'ray[rllib]==2.60.0' "
        "torch==2.13.0 ale-py opencv-python-headless. cleanrl: torch==2.13.0 envpool==0.8.4 "
        "gym==0.23.1 tensorboard 'numpy<2'. cleanba: jax==0.4.23 flax==0.6.11 optax==0.1.7 "
        "chex==0.1.85 rlax==0.1.6 envpool==0.8.4 gym==0.23.1 tensorboardX tyro rich. pufferlib: "
        "pufferlib==3.0.0 (NO_OCEAN=1) torch==2.13.0 gymnasium==0.29.1 ale-py==0.9.0 "
        "'opencv-python-headless<4.12'. monobeast: Python 3.10, torchbeast on its path, torch "
        "gym==0.23.1 ale-py==0.7.5 opencv-python-headless.",
    )
    peer_script: str | None = option(
        None, f"The peer's own training script, for {', '.join(end_to_end_peers.NEED_SCRIPT)}."
    )
    rounds: int = option(1, "How often each is measured.")
    warmup_secs: float = option(15.0, "Seconds before the measurement starts.")
    seconds: float = option(30.0, "Seconds of each measurement.")
    part_secs: float = option(5.0, "Seconds for which each bare part is measured.")
    json: bool = option(False, "Print one line of JSON last.")
    worker: bool = option(False, "Measure variant A once, in this process, and print JSON only.")

    def __post_init__(self) -> None:
        for name in ("actors", "envs_per_actor", "rounds"):
            require(self, name, getattr(self, name) >= 1, "at least 1")
        for name in ("seconds", "part_secs"):
            require(self, name, 0 < getattr(self, name) < math.inf, "a number above 0")
        require(self, "warmup_secs", 0 <= self.warmup_secs < math.inf, "at least 0")
        found = self.peer_python is None or shutil.which(self.peer_python) is not None
        require(self, "peer_python", found, "the path of a virtual environment's bin/python")
        if self.peer_python and self.peer in end_to_end_peers.NEED_SCRIPT and not self.peer_script:
            raise ValueError(
                f"--peer_script is missing, wanted the path of {self.peer}'s training script"
            )


def _run_worker(config: BenchConfig, variant: str) -> dict[str, Any]:
    words = [
        f"--{field.name}={getattr(config, field.name)}"
        for field in dataclasses.fields(config)
        if field.name not in ("a", "b", "peer", "peer_python", "peer_script", "json", "worker")
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


def _measure_in_turn(config: BenchConfig) -> dict[str, list[dict[str, Any]]]:
    variants = {"A": config.a} | ({} if config.b is None else {"B": config.b})
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    for turn in range(config.rounds):
        for name, variant in variants.items():
            print(f"round {turn + 1}/{config.rounds}, {name}: {variant}", flush=True)
            results[name].append(_run_worker(config, variant))
        if config.peer_python is not None:
            print(f"round {turn + 1}/{config.rounds}, {config.peer}", flush=True)
            results.setdefault(config.peer, []).append(
                end_to_end_peers.measure(
                    config.peer,
                    config.peer_python,
                    config.peer_script,
                    config.warmup_secs,
                    config.seconds,
                )
            )
    return results


def _print_table(medians: dict[str, dict[str, Any]]) -> None:
    """A column for each variant, then the ratios of A to all others."""
    columns = list(medians)
    others = [f"A/{name}" for name in columns[1:]]
    print(" " * 24 + "".join(f"{name:>16s}" for name in [*columns, *others]))
    for key, value in medians["A"].items():
        cells = []
        for name in columns:
            cell = medians[name].get(key, "")
            cells.append(f"{cell:,.3f}" if isinstance(cell, float) else cell)
        for name in columns[1:]:
            other = medians[name].get(key)
            cells.append(f"{value / other:.3f}" if isinstance(other, float) and other else "")
        print(f"{key:24s}" + "".join(f"{cell:>16s}" for cell in cells))


def main(argv: list[str]) -> int:
    if {"--help", "-h"} & set(argv):
        print(__doc__, flags.usage(BenchConfig))
        return 0
    try:
        (config,) = flags.parse(argv, BenchConfig)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    # Or a terminated benchmark would leave others running, to spoil the next one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if config.worker:
        from end_to_end_run import measure

        print(json.dumps(measure(config)))
        return 0
    results = _measure_in_turn(config)
    medians = {name: _median(runs) for name, runs in results.items()}
    _print_table(medians)
    if config.json:
        rest = {name.lower(): median for name, median in medians.items() if name != "A"}
        print(json.dumps({**medians["A"], **rest}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
