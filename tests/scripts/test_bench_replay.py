"""The benchmark of the replay runs, with cpprb or without, and prints what it promises."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/bench_replay.py"
QUICK = ("--seconds=0.05", "--envs=8", "--insert_batch=4", "--batch_size=5", "--lstm_size=3")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *QUICK, *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_every_figure_is_there() -> None:
    result = run("--frames=3x2", "--unrolls=50", "--json")
    assert result.returncode == 0, result.stderr
    *table, last = result.stdout.splitlines()
    numbers = json.loads(last)
    rows = numbers["results"]
    variants = ["seed_rl"]
    if importlib.util.find_spec("cpprb"):
        variants.append("cpprb")
    else:
        assert "without cpprb: type pip install cpprb" in result.stderr
    assert [(row["operation"], row["variant"]) for row in rows] == [
        (operation, variant)
        for operation in ("insert", "sample+gather", "sample", "update")
        for variant in variants
    ]
    assert all(row["unrolls_per_s"] > 0 and row["wall_ratio"] > 0 for row in rows)
    assert "50 unrolls of 124 rows, frames 3x2" in numbers["benchmark"]
    assert len(table) == 2 + len(rows)  # a title and the names of the columns


def test_environments_that_do_not_divide_are_refused() -> None:
    result = run("--insert_batch=3")
    assert result.returncode == 2
    assert "--envs is 8, wanted a multiple of --insert_batch, which is 3" in result.stderr
