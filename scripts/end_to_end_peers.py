"""Runs other frameworks for bench_end_to_end.py, each as its users start it, from outside."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
from typing import Any

import psutil

_START_SECS = 180.0
_POLL_SECS = 0.05
_HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class _Peer:
    """How to train Pong on 32 environments, 640 agent steps a batch, each of them once.

    Its output tells how far it has come: each match of `report` has the steps so far, in units of
    `unit` agent steps; one without a group stands for `unit` further steps.
    """

    arguments: str  # after the name of the Python; {folder} is a temporary one, {script} the user's
    report: str
    unit: float = 1
    lag: str | None = None  # matches the mean policy lag, in updates
    variables: dict[str, str] = dataclasses.field(default_factory=dict)


# Settings of its own documentation for Atari, but for the number of environments and the batch.
# Its log, every 5 s: "Fps is (10 sec: 3450.2, ...). Total num frames: 123904. Throughput: ...", and
# "Policy #0 lag: (min: 0.0, avg: 2.6, max: 7.0)".
_SAMPLE_FACTORY = _Peer(
    "-m sf_examples.atari.train_atari --train_dir={folder} --experiment=bench --env=atari_pong "
    "--device=cpu --async_rl=True --num_workers=2 --worker_num_splits=2 --num_envs_per_worker=16 "
    "--rollout=20 --batch_size=640 --num_batches_per_epoch=1 --num_epochs=1 "
    "--save_every_sec=100000 ",
    r"Total num frames: (\d+)",
    0.25,
    r"Policy #0 lag: \(min: [\d.-]+, avg: ([\d.-]+)",
    {"OMP_NUM_THREADS": "1"},
)
_OWN_REPORT = r"^steps=(\d+)"  # of the runners beside this file
_PEERS = {
    "sample_factory": dataclasses.replace(
        _SAMPLE_FACTORY,
        arguments=_SAMPLE_FACTORY.arguments + "--use_rnn=False --recurrence=1",
    ),
    "sample_factory_lstm": dataclasses.replace(
        _SAMPLE_FACTORY,
        arguments=_SAMPLE_FACTORY.arguments
        + "--use_rnn=True --rnn_type=lstm --rnn_size=256 --recurrence=20",
    ),
    "sb3": _Peer(f"{_HERE}/peer_sb3.py --threads=2", _OWN_REPORT),
    "sb3_1_thread": _Peer(f"{_HERE}/peer_sb3.py --threads=1", _OWN_REPORT),
    "rllib": _Peer(f"{_HERE}/peer_rllib.py", _OWN_REPORT),
    "pufferlib": _Peer(f"{_HERE}/peer_pufferlib.py", _OWN_REPORT),
    # A line for each update: "SPS: 489".
    "cleanrl": _Peer(
        "{script} --env-id=Pong-v5 --num-envs=32 --num-steps=20 --num-minibatches=1 "
        "--update-epochs=1 --cuda=False --total-timesteps=1000000000",
        r"^SPS: ",
        640,
    ),
    # The learner, every second update: "12800 actor_policy_version=...".
    "cleanba": _Peer(
        "{script} --env-id=Pong-v5 --local-num-envs=16 --num-actor-threads=2 --num-steps=20 "
        "--num-minibatches=1 --hiddens=512 --log-frequency=2 --total-timesteps=1000000000",
        r"^(\d+) actor_policy_version",
    ),
    # Every 5 s: "Steps 12800 @ 695.2 SPS. Loss ...".
    "monobeast": _Peer(
        "-m torchbeast.monobeast --env=PongNoFrameskip-v4 --num_actors=32 --batch_size=32 "
        "--unroll_length=20 --num_learner_threads=1 --disable_cuda --disable_checkpoint "
        "--savedir={folder} --total_steps=1000000000",
        r"Steps (\d+) @ ",
    ),
}
NAMES = tuple(_PEERS)
NEED_SCRIPT = tuple(name for name, peer in _PEERS.items() if "{script}" in peer.arguments)


class PeerError(Exception):
    """The peer did not do what it should; the message has what it printed last."""


def measure(
    name: str, python: str, script: str | None, warmup_secs: float, seconds: float
) -> dict[str, Any]:
    """Trains Pong with the peer and measures `seconds` after the warm-up."""
    peer = _PEERS[name]
    # It runs in a folder of its own, where some write.
    python = os.path.abspath(shutil.which(python) or python)
    script = script and os.path.abspath(script)
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        with log.open("w") as file:
            process = psutil.Popen(
                [python, *(w.format(folder=folder, script=script) for w in peer.arguments.split())],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **peer.variables},
                cwd=folder,
            )
        try:
            began = time.perf_counter()
            first = _next_report(name, process, log, 0, began + _START_SECS)
            while time.perf_counter() < began + warmup_secs or first.steps == 0:
                deadline = began + warmup_secs + _START_SECS
                first = _next_report(name, process, log, first.count, deadline)
            last = first
            while last.when - first.when < seconds:
                last = _next_report(name, process, log, last.count, last.when + _START_SECS)
            memory = megabytes(process)
        finally:
            _kill(process)
        text = log.read_text(errors="replace")
    steps = last.steps - first.steps
    measured = {
        "steps_s": steps / (last.when - first.when),
        "frames_s": 4 * steps / (last.when - first.when),
        "cpu_s_per_1k": 1000 * (last.cpu - first.cpu) / steps,
        "rss_mb": memory,
    }
    if peer.lag is not None:
        # The first reports are of a policy that is still being loaded.
        lags = [float(mean) for mean in re.findall(peer.lag, text)[2:]]
        measured["policy_lag"] = sum(lags) / max(1, len(lags))
    return measured


def cpu_seconds(process: psutil.Process) -> float:
    """Of the process and all its descendants, those that have ended and were waited for too."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def megabytes(process: psutil.Process) -> float:
    """Resident memory of the process and all its descendants."""
    total = 0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += one.memory_info().rss
    return total / 2**20


def steps_so_far(name: str, output: str) -> list[float]:
    """The agent steps that the peer had trained on at each report in its output."""
    peer = _PEERS[name]
    reports = re.findall(peer.report, output, re.MULTILINE)
    if re.compile(peer.report).groups:
        return [peer.unit * int(steps) for steps in reports]
    return [peer.unit * (count + 1) for count in range(len(reports))]


@dataclasses.dataclass(frozen=True)
class _Report:
    when: float
    cpu: float
    steps: float
    count: int  # of reports, with this one


def _next_report(
    name: str, process: psutil.Popen, log: pathlib.Path, count: int, deadline: float
) -> _Report:
    """The last of the peer's reports as soon as there are more than `count`."""
    while time.perf_counter() < deadline and process.poll() is None:
        steps = steps_so_far(name, log.read_text(errors="replace"))
        if len(steps) > count:
            return _Report(time.perf_counter(), cpu_seconds(process), steps[-1], len(steps))
        time.sleep(_POLL_SECS)
    raise PeerError(f"{name} reports nothing:\n{log.read_text(errors='replace')[-2000:]}")


def _kill(process: psutil.Popen) -> None:
    """Ends the process and all its descendants, whatever sessions they are in."""
    everyone = [process]
    with contextlib.suppress(psutil.NoSuchProcess):
        everyone += process.children(recursive=True)
    for one in everyone:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()
