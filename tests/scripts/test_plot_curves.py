"""Curves are drawn from the files that a run leaves for TensorBoard."""

from __future__ import annotations

import csv
import pathlib
import subprocess
import sys

import tensorflow as tf

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/plot_curves.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def write_scalars(logdir: pathlib.Path, name: str, values: list[float]) -> None:
    with tf.summary.create_file_writer(str(logdir)).as_default():
        for i, value in enumerate(values):
            tf.summary.scalar(name, value, step=1000 * i)


def test_draws_a_picture_and_a_table(tmp_path: pathlib.Path) -> None:
    write_scalars(tmp_path / "some_run", "episode/return", [-21.0, 3.5])
    result = run(tmp_path / "some_run", f"--out={tmp_path}/curve")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with open(tmp_path / "curve.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["frames"], float(row["episode/return"])) for row in rows] == [
        ("some_run", "0", -21.0),
        ("some_run", "1000", 3.5),
    ]


def test_a_run_without_episodes_is_told(tmp_path: pathlib.Path) -> None:
    write_scalars(tmp_path, "train/loss", [1.0])
    result = run(tmp_path, f"--out={tmp_path}/curve")
    assert result.returncode == 1
    line = result.stderr.splitlines()[-1]
    assert line.startswith(f"{tmp_path} has no episode/return; saw train/loss: train until")
