"""The benchmark of the environments runs and prints what it promises."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

DOUBLE = pathlib.Path(__file__).parents[1] / "tools/dmlab_double"
SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/bench_environments.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, "--seconds=0.05", "--num_envs=3", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(DOUBLE)},
        check=False,
    )


def test_every_figure_is_there() -> None:
    cases = (
        "gym:CartPole-v1",
        "gym:Pendulum-v1",
        "vector:CartPole-v1",
        "atari:Pong",
        "dmlab:rooms_watermaze",
    )
    result = run("gym", *cases[1:], "--json")
    assert result.returncode == 0, result.stderr
    *table, last = result.stdout.splitlines()
    numbers = json.loads(last)
    rows = numbers["results"]
    assert [(row["environment"], row["variant"]) for row in rows] == [
        (environment, variant) for environment in cases for variant in ("bare", "adapter")
    ]
    assert all(row["steps_per_s"] > 0 and row["bare_share"] > 0 for row in rows)
    assert rows[0]["bare_share"] == 1
    assert numbers["benchmark"].startswith("3 environments stepped together")
    assert len(table) == 2 + len(rows)  # a title and the names of the columns


def test_children_that_have_ended_are_counted() -> None:
    """Environments may step in processes of their own, and what those cost is the benchmark's."""
    program = """
import subprocess, sys
import psutil
import bench_tools, end_to_end_peers
counters = bench_tools.cpu_seconds, lambda: end_to_end_peers.cpu_seconds(psutil.Process())
before = [count() for count in counters]
burn = "while __import__('time').process_time() < 0.5: pass"
subprocess.run([sys.executable, "-c", burn], check=True)
assert all(count() - start > 0.45 for count, start in zip(counters, before, strict=True))
"""
    subprocess.run([sys.executable, "-c", program], cwd=SCRIPT.parent, check=True, timeout=100)


def test_families_without_a_bare_loop_are_refused() -> None:
    result = run("chess:Blitz")
    assert result.returncode == 2
    assert "'chess:Blitz': wanted FAMILY or FAMILY:GAME, with one of gym, mujoco" in result.stderr
