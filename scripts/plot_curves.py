#!/usr/bin/env python3
"""Draws the learning curves of runs from their TensorBoard files, as PNG and CSV.

    python scripts/plot_curves.py logs/atari-Pong-vtrace-20300101-120000 --out=pong

writes pong.csv and pong.png: the mean return of the episodes that ended between two reports,
against environment frames, one curve a log dir. Needs matplotlib: pip install -e '.[plots]'.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray


def read_scalar(logdir: str, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Frames, hours since the first point, and values of one scalar. Exits where there is none."""
    events = EventAccumulator(logdir, size_guidance={"tensors": 0})
    events.Reload()
    names = events.Tags()["tensors"]
    if name not in names:
        sys.exit(
            f"{logdir} has no {name}; saw {', '.join(sorted(names)) or 'no scalars'}: "
            "train until an episode has ended, or choose another by --scalar"
        )
    points = events.Tensors(name)
    start = points[0].wall_time
    return (
        np.array([point.step for point in points]),
        np.array([(point.wall_time - start) / 3600 for point in points]),
        np.array([float(make_ndarray(point.tensor_proto)) for point in points]),
    )


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Mean of each value and those up to `width` - 1 before it."""
    sums = np.cumsum(np.insert(values, 0, 0.0))
    first = np.maximum(np.arange(len(values)) - width + 1, 0)
    last = np.arange(len(values)) + 1
    return (sums[last] - sums[first]) / (last - first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logdirs", nargs="+")
    parser.add_argument("--scalar", default="episode/return")
    parser.add_argument("--out", default="curves", help="path of the files, without their endings")
    parser.add_argument("--smooth", type=int, default=10, help="reports to average over")
    parser.add_argument("--title", default="")
    options = parser.parse_args()

    figure, axes = plt.subplots(figsize=(8, 5))
    with open(options.out + ".csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "frames", "hours", options.scalar])
        for logdir in options.logdirs:
            run = os.path.basename(os.path.normpath(logdir))
            frames, hours, values = read_scalar(logdir, options.scalar)
            for row in zip(frames, hours, values, strict=True):
                writer.writerow([run, row[0], f"{row[1]:.4f}", f"{row[2]:.4f}"])
            axes.plot(frames / 1e6, values, alpha=0.25)
            axes.plot(
                frames / 1e6,
                smooth(values, options.smooth),
                color=axes.lines[-1].get_color(),
                label=f"{run} ({hours[-1]:.1f} h)",
            )
    axes.set_xlabel("environment frames, millions")
    axes.set_ylabel(options.scalar)
    axes.set_title(options.title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(options.out + ".png", dpi=100)


if __name__ == "__main__":
    main()
