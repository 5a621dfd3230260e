"""The end-to-end benchmark runs a real learner and actors, and prints what it promises."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent.parent.parent / "scripts/bench_end_to_end.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, SCRIPT, "--environment=catch", "--actors=2", "--envs_per_actor=2"),
            *("--warmup_secs=0.2", "--seconds=1", "--part_secs=0.1", *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_numbers_of_a_run() -> None:
    result = run("--a=--network=shallow --batch_size=2 --unroll_length=5", "--json")
    assert result.returncode == 0, result.stderr
    numbers = json.loads(result.stdout.splitlines()[-1])
    assert numbers["network"] == "shallow"
    assert numbers["core"] in ("native", "python")
    for name in ("steps_s", "frames_s", "updates_s", "start_secs", "learner_rss_mb"):
        assert numbers[name] > 0
    assert 0 <= numbers["policy_lag"] < 10
    parts = [numbers[f"floor_{part}"] for part in ("environments", "inference", "training")]
    assert all(part > 0 for part in parts)
    assert numbers["floor_cpu_s_per_1k"] == pytest.approx(sum(parts))
    total = numbers["learner_cpu_s_per_1k"] + numbers["actor_cpu_s_per_1k"]
    assert numbers["cpu_s_per_1k"] == pytest.approx(total)
    # Threads are counted in ticks of 10 ms, and those that end meanwhile are lost.
    threads = sum(value for name, value in numbers.items() if name.endswith(("thread", "threads")))
    assert threads == pytest.approx(numbers["learner_cpu_s_per_1k"], rel=0.5)


@pytest.mark.parametrize("peer", ["sample_factory", "sb3"])
def test_a_peer_that_does_not_run_is_told(peer: str) -> None:
    arguments = "--a=--network=shallow --batch_size=2 --unroll_length=5"
    result = run(arguments, f"--peer={peer}", "--peer_python=/bin/false")
    assert result.returncode == 1
    assert "PeerError" in result.stderr
