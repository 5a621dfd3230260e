"""The end-to-end benchmark runs a real learner and actors, and prints what it promises."""

from __future__ import annotations

import importlib
import json
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import psutil
import pytest

SCRIPT = pathlib.Path(__file__).parent.parent.parent / "scripts/bench_end_to_end.py"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("end_to_end_peers")


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


@pytest.mark.parametrize(
    ("flag", "wanted"),
    [
        ("--rounds=0", "at least 1"),
        ("--actors=0", "at least 1"),
        ("--seconds=-1", "a number above 0"),
        ("--part_secs=0", "a number above 0"),
        ("--warmup_secs=inf", "at least 0"),
        ("--peer_python=/nonexistent", "the path of a virtual environment's bin/python"),
    ],
)
def test_flags_are_checked_before_anything_is_measured(flag: str, wanted: str) -> None:
    result = run(flag)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(flag.split("=")[0])
    assert f"wanted {wanted};" in line


def test_a_peer_that_is_only_a_script_needs_its_path() -> None:
    result = run("--peer=cleanba", "--peer_python=/bin/false")
    assert result.returncode == 2
    assert "--peer_script" in result.stderr
    assert "cleanba" in result.stderr


@pytest.mark.parametrize(
    ("peer", "output", "steps"),
    [
        (
            "sample_factory",
            "Total num frames: 0. Throughput: 0\nTotal num frames: 123904. Throughput: 9\n",
            [0, 30976],
        ),
        ("sb3", "Using cpu device\nsteps=640\nsteps=1280\n", [640, 1280]),
        ("cleanrl", "SPS: 489\nglobal_step=900, episodic_return=-21.0\nSPS: 490\n", [640, 1280]),
        ("cleanba", "global_step=1312, avg\nSPS: 351\n1952 actor_policy_version=1, a", [1952]),
        ("monobeast", "[INFO:1 monobeast:469 now] Steps 12800 @ 695.2 SPS. Loss 1.0", [12800]),
    ],
)
def test_steps_in_the_output_of_a_peer(
    peers: Any, peer: str, output: str, steps: list[float]
) -> None:
    assert peers.steps_so_far(peer, output) == steps


def test_a_peer_is_measured_with_its_children(
    peers: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "peer.py"
    # The child, which ends before the next report, computes for 0.2 s a step.
    script.write_text(
        textwrap.dedent("""
        import pathlib, subprocess, sys
        pathlib.Path(sys.argv[1]).write_text("")
        busy = "import time\\nwhile time.process_time() < 0.2: pass"
        step = 0
        while True:
            step += 1
            subprocess.run([sys.executable, "-c", busy], check=True)
            print("steps", step)
        """)
    )
    peer = peers._Peer("{script} {folder}/made", r"steps (\d+)")
    monkeypatch.setitem(peers._PEERS, "test", peer)
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    result = peers.measure("test", sys.executable, str(script), 0.5, 1)
    assert 0.19 < result["cpu_s_per_1k"] / 1000 < 0.6
    assert 0 < result["steps_s"] < 5.5
    assert result["frames_s"] == pytest.approx(4 * result["steps_s"])
    assert result["rss_mb"] > 1
    assert {one.pid for one in psutil.Process().children(recursive=True)} <= before
