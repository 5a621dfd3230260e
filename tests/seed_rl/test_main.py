"""The command `python -m seed_rl`: what it makes of its words, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seed_rl import devices
from seed_rl.__main__ import main

LEARNER = ["--run_mode=learner", "--environment=catch", "--num_envs=4", "--env_batch_size=2"]


@pytest.fixture(autouse=True)
def tensorflow_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts once in a process, which pytest's may have behind it."""
    monkeypatch.setattr(devices, "start_tensorflow", lambda *threads: None)


@pytest.fixture(autouse=True)
def signals_stay_as_they_are() -> object:
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    for number, handler in before:
        signal.signal(number, handler)


def error_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("seed_rl: ")
    return line


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--run_mode=lerner"], "--run_mode"),
        (["--environment=pong"], "--environment=pong is unknown: wanted one of atari, catch"),
        (["--environment=nosuchmodule:make"], "found no module nosuchmodule"),
        (["--environment=catch", "--agent=dqn"], "--agent=dqn"),
        (
            [*LEARNER, "--logdir=x", "--learningrate=1"],
            "'learningrate'. Did you mean: learning_rate",
        ),
        ([*LEARNER, "--logdir=x", "--game=Pong"], "'game'"),  # catch has none
        ([*LEARNER, "--logdir=x", "pong"], "wanted only --flags, saw 'pong'"),
        ([*LEARNER, "--logdir=x", "--num_envs=5"], "--num_envs=5 is not a multiple"),
        ([*LEARNER, "--logdir=x", "--c_bar=2"], "at most --rho_bar"),
        ([*LEARNER, "--logdir=x", "--server_address=nonsense"], "nonsense"),
        (LEARNER, "--logdir is empty"),
        (["--run_mode=actor", "--num_envz=3"], "'num_envz'"),
        (["--run_mode=actor", "--task=-1"], "--task is -1"),
        (["--run_mode=actor", "--logdir=x"], "'logdir'"),  # the learner's
    ],
)
def test_mistakes_are_one_line(
    argv: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case 24: and nothing is left in the folder where it was typed."""
    monkeypatch.chdir(tmp_path)
    assert words in error_line(argv, capsys)
    assert not list(tmp_path.iterdir())


def test_a_foreign_folder_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    line = error_line([*LEARNER, f"--logdir={tmp_path}"], capsys)
    assert "choose another --logdir" in line
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_agent_that_can_not_learn_there_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learner = ["--run_mode=learner", "--environment=gym", "--agent=r2d2", "--game=Pendulum-v1"]
    line = error_line([*learner, f"--logdir={tmp_path / 'run'}"], capsys)
    assert "--agent=r2d2: wanted one action, an integer from 0" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("asks", ["--help", "-h", "help", "--helpfull"])
def test_help_of_a_learner(asks: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--environment", "gym", asks]) == 0
    text = capsys.readouterr().out
    for flag in (
        "--run_mode=",
        "--total_environment_frames=",
        "--game=CartPole",
        "--entropy_cost=",
    ):
        assert flag in text


def test_help_of_an_actor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "--run_mode=actor"]) == 0
    text = capsys.readouterr().out
    assert "--reconnect_secs=" in text
    assert "--entropy_cost" not in text


def test_mistakes_and_help_need_no_tensorflow() -> None:
    """It takes seconds to import; and actors never do it."""
    program = f"""
import sys
from seed_rl.__main__ import main
assert main(["--help"]) == main(["--help", "--run_mode=actor"]) == 0
assert main({LEARNER!r}) == main({LEARNER!r} + ["--logdir=x", "--nosuch=1"]) == 2
assert main(["--run_mode=actor", "--server_address=unix:nowhere", "--reconnect_secs=0"]) != 0
assert "tensorflow" not in sys.modules
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr


def test_a_learner_that_is_told_to_stop_saves_and_ends_well(tmp_path: Path) -> None:
    """Cases 40 and 116: no actor has ever come, and it ends within seconds all the same."""
    logdir = tmp_path / "run"
    argv = [*LEARNER, f"--logdir={logdir}", f"--server_address=unix:{tmp_path}/socket"]
    log_path = tmp_path / "log"
    with open(log_path, "w") as log:
        process = subprocess.Popen([sys.executable, "-m", "seed_rl", *argv], stderr=log)
    try:
        deadline = time.monotonic() + 120
        while "serving 4 environments" not in log_path.read_text():
            assert process.poll() is None, log_path.read_text()
            assert time.monotonic() < deadline, log_path.read_text()
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
    finally:
        process.kill()
        process.wait()
    text = log_path.read_text()
    assert "SIGTERM: saving and stopping" in text
    assert "stopped at 0 frames" in text
    assert "Traceback" not in text
    assert sorted(os.listdir(logdir / "checkpoints")) == [
        "ckpt-0.data-00000-of-00001",
        "ckpt-0.index",
    ]
