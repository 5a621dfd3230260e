#!/usr/bin/env python3
"""Measures prioritized replay: unrolls inserted, sampled and given new priorities a second.

Beside it, in turn within the same process, cpprb, where `pip install cpprb` has been run: a replay
buffer in C++ and Cython. It has no rows in common between unrolls, so each is stored as a whole,
and it returns them batch-major, in new arrays. For example:

    python scripts/bench_replay.py --json
    python scripts/bench_replay.py --frames=84x84        as many unrolls as fit in memory
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from typing import Any

import bench_tools
import numpy as np

from seed_rl.replay.buffer import ReplayBuffer, replay_bytes
from seed_rl.replay.memory import available_bytes, describe_bytes
from seed_rl.specs import ArraySpec

try:
    import cpprb
except ImportError:
    cpprb = None

LENGTH, BURN_IN, HISTORY = 80, 40, 3
NUM_ROWS = BURN_IN + 1 + HISTORY + LENGTH
# Calls that are timed together: some take no longer than a look at the clock.
REPEATS = 10
# Contents are taken from a pool, which is small so that none of the time is for making them.
POOL = 4


class Load:
    """What is stored, and how much of it at once."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        height, width = (int(size) for size in arguments.frames.split("x"))
        self.columns = [
            ArraySpec((), "uint8"),
            ArraySpec((), "float32"),
            ArraySpec((height, width), "uint8", 0, 255),
            ArraySpec((), "int64"),
        ]
        self.states = [ArraySpec((arguments.lstm_size,), "float32")] * 2
        self.num_envs = arguments.envs
        self.num_inserted = arguments.insert_batch
        self.batch_size = arguments.batch_size
        self.num_unrolls = arguments.unrolls
        self.rng = np.random.default_rng(0)

    def ours(self) -> tuple[Any, ...]:
        shape = (self.num_envs, LENGTH, BURN_IN, HISTORY, self.num_unrolls)
        return self.columns, self.states, *shape

    def num_bytes(self) -> int:
        """Of all that are compared."""
        whole = sum(spec.num_bytes for spec in self.columns) * NUM_ROWS
        whole += sum(spec.num_bytes for spec in self.states)
        return replay_bytes(*self.ours()) + (whole * self.num_unrolls if cpprb else 0)

    def shrink(self) -> None:
        """To what fits in half of the memory."""
        available = available_bytes()
        if available is not None and (needed := self.num_bytes()) > available // 2:
            self.num_unrolls = max(int(available / 2 / needed * self.num_unrolls), self.batch_size)
            print(
                f"{describe_bytes(needed)} are more than half of the memory: "
                f"{self.num_unrolls} unrolls",
                file=sys.stderr,
            )

    def pool(self, num_rows: int) -> list[list[np.ndarray]]:
        """Columns `[m, num_rows, ...]`, each of them POOL times."""
        return [[self._random(spec, num_rows) for spec in self.columns] for _ in range(POOL)]

    def state_pool(self) -> list[list[np.ndarray]]:
        return [[self._random(spec) for spec in self.states] for _ in range(POOL)]

    def priorities(self, n: int) -> np.ndarray:
        return self.rng.uniform(0.1, 2, n)

    def _random(self, spec: ArraySpec, *leading: int) -> np.ndarray:
        shape = (self.num_inserted, *leading, *spec.shape)
        return self.rng.integers(0, 256, shape).astype(spec.dtype)


class Ours:
    def __init__(self, load: Load) -> None:
        self._load = load
        self._buffer = ReplayBuffer(*load.ours(), priority_exponent=0.9)
        blocks = zip(load.pool(LENGTH), load.state_pool(), strict=True)
        env_ids = np.arange(load.num_envs).reshape(-1, load.num_inserted)
        self._next = zip(itertools.cycle(env_ids), itertools.cycle(blocks))
        self._no_starts = np.zeros(load.num_inserted, bool)
        self._versions = np.zeros(load.num_inserted, np.int64)
        self._columns = [spec.zeros(NUM_ROWS, load.batch_size) for spec in load.columns]
        self._states = [spec.zeros(load.batch_size) for spec in load.states]
        # As many as there are slots: then each insertion also overwrites.
        for _ in range(load.num_unrolls // load.num_inserted + 2 * len(env_ids)):
            self.insert()

    def insert(self) -> None:
        env_ids, (columns, states) = next(self._next)
        priorities = self._load.priorities(len(env_ids))
        self._buffer.insert(env_ids, columns, states, self._no_starts, priorities, self._versions)

    def sample(self) -> np.ndarray:
        return self._buffer.sample(self._load.batch_size, self._load.rng).numbers

    def sample_and_gather(self) -> None:
        self._buffer.gather(self.sample(), self._columns, self._states)

    def make_update(self) -> Callable[[], object]:
        numbers = self.sample()
        return lambda: self._buffer.update(numbers, self._load.priorities(len(numbers)))


class Cpprb:
    """The same with cpprb."""

    def __init__(self, load: Load) -> None:
        self._load = load
        fields = {
            f"column{i}": {"shape": (NUM_ROWS, *spec.shape), "dtype": spec.dtype}
            for i, spec in enumerate(load.columns)
        }
        fields |= {
            f"state{i}": {"shape": spec.shape, "dtype": spec.dtype}
            for i, spec in enumerate(load.states)
        }
        self._buffer = cpprb.PrioritizedReplayBuffer(load.num_unrolls, fields, alpha=0.9)
        # It can't draw without copying, so it copies a byte.
        byte = {"nothing": {"shape": 1, "dtype": "uint8"}}
        self._bare = cpprb.PrioritizedReplayBuffer(load.num_unrolls, byte, alpha=0.9)
        arrays = (
            [*columns, *states]
            for columns, states in zip(load.pool(NUM_ROWS), load.state_pool(), strict=True)
        )
        self._next = itertools.cycle([dict(zip(fields, each, strict=True)) for each in arrays])
        self._nothing = np.zeros(load.num_inserted, np.uint8)
        for _ in range(load.num_unrolls // load.num_inserted + 1):
            self.insert()
            priorities = load.priorities(load.num_inserted)
            self._bare.add(nothing=self._nothing, priorities=priorities)

    def insert(self) -> None:
        priorities = self._load.priorities(self._load.num_inserted)
        self._buffer.add(**next(self._next), priorities=priorities)

    def sample(self) -> np.ndarray:
        return self._bare.sample(self._load.batch_size, beta=0.6)["indexes"]

    def sample_and_gather(self) -> None:
        self._buffer.sample(self._load.batch_size, beta=0.6)

    def make_update(self) -> Callable[[], object]:
        indices = self.sample()
        return lambda: self._bare.update_priorities(indices, self._load.priorities(len(indices)))


def repeat(call: Callable[[], object]) -> Callable[[], None]:
    def calls() -> None:
        for _ in range(REPEATS):
            call()

    return calls


def measure(load: Load, seconds: float) -> list[dict[str, Any]]:
    replays: dict[str, Any] = {"seed_rl": Ours(load)}
    if cpprb:
        replays["cpprb"] = Cpprb(load)
    else:
        print("without cpprb: type pip install cpprb", file=sys.stderr)
    operations: dict[str, tuple[int, Callable[[Any], Callable[[], object]]]] = {
        "insert": (load.num_inserted, lambda replay: replay.insert),
        "sample+gather": (load.batch_size, lambda replay: replay.sample_and_gather),
        "sample": (load.batch_size, lambda replay: replay.sample),
        "update": (load.batch_size, lambda replay: replay.make_update()),
    }
    rows = []
    for name, (num_unrolls, choose) in operations.items():
        calls = {variant: repeat(choose(replay)) for variant, replay in replays.items()}
        for row in bench_tools.compare(calls, seconds, num_unrolls * REPEATS):
            per_second = round(1e6 / max(float(row["wall_us"]), 0.1))
            rows.append({"operation": name, "unrolls_per_s": per_second, **row})
    return rows


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", default="4x4", help="Height and width of a row's frame.")
    parser.add_argument(
        "--unrolls", type=int, default=100_000, help="In the replay. Fewer where they don't fit."
    )
    parser.add_argument("--envs", type=int, default=64, help="Environments that insert in turn.")
    parser.add_argument("--insert_batch", type=int, default=16, help="Unrolls inserted at once.")
    parser.add_argument("--batch_size", type=int, default=64, help="Unrolls sampled at once.")
    parser.add_argument("--lstm_size", type=int, default=512, help="Of each unroll's state.")
    parser.add_argument("--seconds", type=float, default=3.0, help="Of each operation, about.")
    parser.add_argument("--json", action="store_true", help="Print one line of JSON at the end.")
    arguments = parser.parse_args()
    if arguments.envs % arguments.insert_batch:
        parser.error(
            f"--envs is {arguments.envs}, wanted a multiple of --insert_batch, which is "
            f"{arguments.insert_batch}"
        )
    return arguments


def main() -> None:
    arguments = parse()
    load = Load(arguments)
    load.shrink()
    title = (
        f"replay of {load.num_unrolls} unrolls of {NUM_ROWS} rows, frames {arguments.frames}, "
        f"{describe_bytes(replay_bytes(*load.ours()))}; {load.num_inserted} inserted and "
        f"{load.batch_size} sampled at once; us are those of an unroll"
    )
    bench_tools.report(arguments, title, measure(load, arguments.seconds))


if __name__ == "__main__":
    main()
