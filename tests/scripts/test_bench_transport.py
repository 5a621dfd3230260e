import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/bench_transport.py"
QUICK = [
    "--seconds=0.05",
    "--rounds=1",
    "--processes=1",
    "--streams=2",
    "--stream_counts",
    "1",
    "4",
]
FIGURES = (
    "rows_s_64x64b",
    "rows_s_64xframe",
    "server_us_single",
    "client_us_single",
    "p50_us_unix",
    "p99_us_tcp",
    "cores_for_2_4m_frames_s",
    "row_cost_growth_64x64b",
    "row_us_single_4_streams",
)


def run(*options: str, env: dict[str, str] | None = None) -> tuple[str, dict, str]:
    done = subprocess.run(
        [sys.executable, SCRIPT, *QUICK, *options, "--json"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    table, last = done.stdout.rstrip("\n").rsplit("\n", 1)
    return table, json.loads(last), done.stderr


def test_every_figure_is_there():
    table, figures, errors = run(
        "--parts", "latency", "throughput", "streams", "idle", "--idle_seconds=0.2"
    )
    assert figures["core"] in ("native", "python")
    wanted = [*FIGURES, "python_server_us_single", *(f"python_{name}" for name in FIGURES)]
    if "without raw epoll" not in errors:
        wanted += ["raw_epoll_us", "paced_server_us_single"]
    if figures["core"] == "native":
        wanted += ["native_server_us_single", "mixed_server_us_single"]
    for name in wanted:
        assert figures[name] > 0, name
    assert figures["idle_percent"] >= 0
    assert figures["training_cost_single"] is None
    assert figures[f"{figures['core']}_rows_s_64x64b"] == figures["rows_s_64x64b"]
    assert "rows/s, 64x64b, 2 streams" in table
    assert "server us a row" in table
    assert "lost" not in errors


def test_without_a_compiler_the_limit_is_left_out(tmp_path):
    env = {**os.environ, "PATH": str(tmp_path)}
    _, figures, errors = run("--parts", "latency", "--cores", "python", env=env)
    assert "without raw epoll: no C compiler" in errors
    assert figures["raw_epoll_us"] is None
    assert figures["core"] == "python"
    assert figures["p50_us_unix"] > 0
    assert figures["rows_s_64x64b"] is None


@pytest.mark.slow
def test_training_beside_it():
    _, figures, _ = run("--parts", "training")
    assert figures["python_training_cost_single"] > 0
    assert figures["training_cost_64x64b"] > 0


def test_an_interrupt_ends_all_processes():
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "--parts", "throughput", "--seconds=5", "--cores", "python"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        for line in process.stdout:
            if line.startswith("throughput"):
                break
        time.sleep(1)  # into a measurement
        os.killpg(process.pid, signal.SIGINT)
        # Its end comes when the last process that has the pipe is gone.
        rest, _ = process.communicate(timeout=20)
        assert process.returncode == 130
        assert rest.splitlines() == ["interrupted"]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
