"""Runs other frameworks for bench_end_to_end.py, each as its users start it, from outside."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
from typing import Any

import psutil

# Its log, every 5 s: "Fps is (10 sec: 3450.2, ...). Total num frames: 123904. Throughput: ...", and
# "Policy #0 lag: (min: 0.0, avg: 2.6, max: 7.0)", in updates.
_FRAMES = re.compile(r"Total num frames: (\d+)")
_LAG = re.compile(r"Policy #0 lag: \(min: [\d.-]+, avg: ([\d.-]+), max: ([\d.-]+)\)")
_START_SECS = 120.0
_POLL_SECS = 0.05
# Those of its own documentation for Atari, but for the number of environments and the batch.
_SAMPLE_FACTORY = (
    "--env=atari_pong --device=cpu --async_rl=True --num_workers=2 --worker_num_splits=2 "
    "--num_envs_per_worker=16 --rollout=20 --batch_size=640 --num_batches_per_epoch=1 "
    "--num_epochs=1 --experiment=bench --save_every_sec=100000"
)
_RECURRENCE = {
    "sample_factory": "--use_rnn=False --recurrence=1",
    "sample_factory_lstm": "--use_rnn=True --rnn_type=lstm --rnn_size=256 --recurrence=20",
}
NAMES = (*_RECURRENCE, "sb3", "sb3_1_thread")


class PeerError(Exception):
    """The peer did not do what it should; the message has what it printed last."""


def measure(name: str, python: str, warmup_secs: float, seconds: float) -> dict[str, Any]:
    """Trains Pong with the peer, 32 environments, and measures `seconds` after the warm-up."""
    if name in _RECURRENCE:
        return _sample_factory(name, python, warmup_secs, seconds)
    threads = 1 if name == "sb3_1_thread" else 2
    script = pathlib.Path(__file__).with_name("peer_sb3.py")
    result = subprocess.run(
        [
            *(python, str(script), f"--threads={threads}"),
            *(f"--warmup_secs={warmup_secs}", f"--seconds={seconds}"),
        ],
        capture_output=True,
        text=True,
        timeout=warmup_secs + seconds + _START_SECS,
        check=False,
    )
    if result.returncode:
        raise PeerError(f"{name} failed:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    measured: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return measured


def cpu_seconds(process: psutil.Process) -> float:
    """Of the process and all its descendants, those that have ended and were waited for too."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def megabytes(process: psutil.Process) -> float:
    """Resident memory of the process and all its descendants."""
    total = 0
    for one in (process, *process.children(recursive=True)):
        try:
            total += one.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 2**20


def _sample_factory(name: str, python: str, warmup_secs: float, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        with log.open("w") as file:
            process = psutil.Popen(
                [
                    *(python, "-m", "sf_examples.atari.train_atari", f"--train_dir={folder}"),
                    *_SAMPLE_FACTORY.split(),
                    *_RECURRENCE[name].split(),
                ],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        try:
            began = time.perf_counter()
            first = _next_report(process, log, 0, began + _START_SECS)
            while time.perf_counter() < began + warmup_secs or first[1] == 0:
                first = _next_report(process, log, first[2], began + warmup_secs + _START_SECS)
            cpu = cpu_seconds(process)
            last = first
            while last[0] - first[0] < seconds:
                last = _next_report(process, log, last[2], last[0] + _START_SECS)
            cpu = cpu_seconds(process) - cpu
            memory = megabytes(process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        lags = [float(mean) for mean, _ in _LAG.findall(log.read_text(errors="replace"))]
    frames = last[1] - first[1]
    steps = frames / 4
    return {
        "steps_s": steps / (last[0] - first[0]),
        "frames_s": frames / (last[0] - first[0]),
        "cpu_s_per_1k": 1000 * cpu / steps,
        "rss_mb": memory,
        # The first reports are of a policy that is still being loaded.
        "policy_lag": sum(lags[2:]) / max(1, len(lags[2:])),
    }


def _next_report(
    process: psutil.Popen, log: pathlib.Path, count: int, deadline: float
) -> tuple[float, int, int]:
    """When report number `count` came, its frames, and the number of the next."""
    while time.perf_counter() < deadline and process.poll() is None:
        reports = _FRAMES.findall(log.read_text(errors="replace"))
        if len(reports) > count:
            return time.perf_counter(), int(reports[-1]), len(reports)
        time.sleep(_POLL_SECS)
    raise PeerError(f"Sample Factory reports nothing:\n{log.read_text(errors='replace')[-2000:]}")
