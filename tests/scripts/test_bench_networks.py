"""The benchmarks of inference and of the training step run and print what they promise."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

SCRIPTS = pathlib.Path(__file__).parent.parent.parent / "scripts"


def run(script: str, *arguments: str) -> tuple[list[str], dict[str, object]]:
    result = subprocess.run(
        [sys.executable, SCRIPTS / script, "--image=36x36x4", "--seconds=0.1", *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    *table, last = result.stdout.splitlines()
    return table, json.loads(last)


def test_inference() -> None:
    table, numbers = run(
        "bench_inference.py", "shallow", "shallow+lstm4:single", "--batch_sizes=1,3", "--json"
    )
    rows = numbers["results"]
    assert [(row["batch_size"], row["variant"]) for row in rows] == [
        (1, "shallow"),
        (1, "shallow+lstm4:single"),
        (3, "shallow"),
        (3, "shallow+lstm4:single"),
    ]
    assert all(row["wall_us"] > 0 and row["cpu_us"] > 0 for row in rows)
    assert rows[0]["wall_ratio"] == rows[2]["cpu_ratio"] == 1
    assert len(table) == 2 + len(rows)  # a title and the names of the columns


def test_train_step() -> None:
    table, numbers = run(
        "bench_train_step.py",
        *("shallow", "shallow+lstm4:single"),
        *("--unroll_length=3", "--train_batch=2", "--json"),
    )
    rows = numbers["results"]
    assert [row["variant"] for row in rows] == ["shallow", "shallow+lstm4:single"]
    assert all(row["cpu_us_per_transition"] > 0 for row in rows)
    assert len(table) == 2 + len(rows)


def test_train_step_of_r2d2() -> None:
    _, numbers = run(
        "bench_train_step.py",
        *("shallow+lstm4", "--agent=r2d2", "--unroll_length=3", "--train_batch=2", "--json"),
    )
    (row,) = numbers["results"]
    assert row["cpu_us_per_transition"] > 0
    assert "r2d2" in numbers["benchmark"]


def test_a_misspelt_variant_is_refused() -> None:
    result = subprocess.run(
        [sys.executable, SCRIPTS / "bench_inference.py", "nature-single"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert result.returncode == 2
    assert "wanted NETWORK, NETWORK+lstmSIZE" in result.stderr
