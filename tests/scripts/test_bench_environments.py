"""The benchmark of the environments runs and prints what it promises."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/bench_environments.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, "--seconds=0.05", "--num_envs=3", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_every_figure_is_there() -> None:
    result = run("gym", "gym:Pendulum-v1", "vector:CartPole-v1", "--json")
    assert result.returncode == 0, result.stderr
    *table, last = result.stdout.splitlines()
    numbers = json.loads(last)
    rows = numbers["results"]
    assert [(row["environment"], row["variant"]) for row in rows] == [
        (environment, variant)
        for environment in ("gym:CartPole-v1", "gym:Pendulum-v1", "vector:CartPole-v1")
        for variant in ("bare", "adapter")
    ]
    assert all(row["steps_per_s"] > 0 and row["bare_share"] > 0 for row in rows)
    assert rows[0]["bare_share"] == 1
    assert numbers["benchmark"].startswith("3 environments stepped together")
    assert len(table) == 2 + len(rows)  # a title and the names of the columns


def test_families_without_a_bare_loop_are_refused() -> None:
    result = run("chess:Blitz")
    assert result.returncode == 2
    assert "'chess:Blitz': wanted FAMILY or FAMILY:GAME, with one of gym, mujoco" in result.stderr
