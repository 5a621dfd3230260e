"""What the benchmarks share: timing variants in turn, and printing what came out."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from seed_rl.agents import registry
from seed_rl.devices import one_thread, start_tensorflow
from seed_rl.specs import ArraySpec, EnvironmentSpecs


@dataclasses.dataclass(frozen=True)
class Variant:
    """A network, and how its graph is executed."""

    name: str
    network: str
    lstm_size: int
    precision: str
    single: bool

    @classmethod
    def parse(cls, text: str) -> Variant:
        match = re.fullmatch(r"(\w+?)(?:\+lstm(\d+))?(@bfloat16)?(:single)?", text)
        if match is None:
            raise argparse.ArgumentTypeError(
                f"variant {text!r}: wanted NETWORK, NETWORK+lstmSIZE, either with @bfloat16 and "
                ":single behind"
            )
        precision = "bfloat16" if match[3] else "float32"
        return cls(text, match[1], int(match[2] or 0), precision, match[4] is not None)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Trace and call in here: the executor is chosen at both times."""
        if self.single:
            return one_thread()
        return contextlib.nullcontext()

    def config(self, agent: str = "vtrace", **options: Any) -> Any:
        algorithm = registry.load(agent)
        return algorithm.Config(
            network=self.network, lstm_size=self.lstm_size, precision=self.precision, **options
        )


def parser(description: str, default_variants: Sequence[str]) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=description)
    result.add_argument(
        "variants",
        nargs="*",
        type=Variant.parse,
        default=[Variant.parse(text) for text in default_variants],
        help="NETWORK or NETWORK+lstmSIZE, for example nature or deep+lstm256; with @bfloat16 "
        "behind, with a torso in that precision; with :single behind, run by TensorFlow's "
        "single-threaded executor. Ratios are to the first. "
        f"Default: {' '.join(default_variants)}",
    )
    result.add_argument("--seconds", type=float, default=3.0, help="Time for each row, about.")
    result.add_argument("--image", default="84x84x4", help="Height, width and stacked frames.")
    result.add_argument("--actions", type=int, default=18, help="Size of the action set.")
    result.add_argument("--intra_op", type=int, default=-1, help="As the learner's flag.")
    result.add_argument("--inter_op", type=int, default=-1, help="As the learner's flag.")
    result.add_argument("--json", action="store_true", help="Print one line of JSON at the end.")
    return result


def start(arguments: argparse.Namespace) -> tuple[EnvironmentSpecs, int]:
    """Sets TensorFlow's threads; the specs of single frames, and how many are stacked."""
    start_tensorflow(arguments.intra_op, arguments.inter_op)
    height, width, num_frames = (int(size) for size in arguments.image.split("x"))
    image = ArraySpec((height, width), "uint8", 0, 255)
    return EnvironmentSpecs(image, ArraySpec((), "int64", 0, arguments.actions - 1)), num_frames


def gigaflops_per_cpu_second() -> float:
    """Of large float32 products: what this machine can do, to compare figures of several."""
    size = 1024
    matrix = tf.random.stateless_normal([size, size], [1, 2])
    product = tf.function(lambda: tf.matmul(matrix, matrix), autograph=False)
    times = []
    for _ in range(10):
        start_time = time.process_time()
        product().numpy()
        times.append(time.process_time() - start_time)
    return 2e-9 * size**3 / float(np.median(times))


def cpu_seconds() -> float:
    """Of this process, and of its children that have ended and were waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def compare(
    calls: dict[str, Callable[[], Any]], seconds: float, per: float
) -> list[dict[str, float | str]]:
    """Times the calls in turn, so that whatever else the machine does meets all of them alike.

    Medians of wall and of process CPU microseconds, each divided by `per`, and the medians of the
    ratios, round by round, to the first call.
    """
    for call in calls.values():
        call()
        call()
    rounds: list[list[tuple[float, float]]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < 3 or time.perf_counter() < end:
        row = []
        for call in calls.values():
            wall, cpu = time.perf_counter(), cpu_seconds()
            call()
            row.append((time.perf_counter() - wall, cpu_seconds() - cpu))
        rounds.append(row)
    times = np.array(rounds) * 1e6 / per  # [rounds, calls, 2]
    medians = np.median(times, axis=0)
    ratios = np.median(times / times[:, :1], axis=0)
    return [
        {
            "variant": name,
            "wall_us": round(float(wall), 1),
            "cpu_us": round(float(cpu), 1),
            "wall_ratio": round(float(wall_ratio), 3),
            "cpu_ratio": round(float(cpu_ratio), 3),
        }
        for name, (wall, cpu), (wall_ratio, cpu_ratio) in zip(calls, medians, ratios, strict=True)
    ]


def report(arguments: argparse.Namespace, benchmark: str, rows: list[dict[str, Any]]) -> None:
    """Prints the rows as a table, and as JSON where that was asked for."""
    limit = gigaflops_per_cpu_second()
    print(f"{benchmark}; float32 matrix products: {limit:.0f} GFLOP per CPU second")
    columns = list(rows[0])
    cells = [columns, *([str(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    if arguments.json:
        print(
            json.dumps(
                {"benchmark": benchmark, "gflop_per_cpu_s": round(limit, 1), "results": rows}
            )
        )
