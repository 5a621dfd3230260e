"""The launcher with the real learner and real actors, from start to stop to resumption."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

# Plays the terminal: what comes on stdin is typed, so that b"\3" is Ctrl-C.
TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
SMALL = ["--batch_size=4", "--unroll_length=5", "--log_secs=1"]


class Launcher:
    def __init__(self, folder: pathlib.Path, *arguments: str, has_terminal: bool = False):
        command = [sys.executable, "-m", "seed_rl.launcher", *arguments, *SMALL]
        if has_terminal:
            command = [sys.executable, "-c", TERMINAL, *command]
        self.output = folder / f"output{len(list(folder.glob('output*')))}.txt"
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.PIPE if has_terminal else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.output.read_text().replace("\r\n", "\n")

    def wait_for(self, is_so: Callable[[str], bool], secs: float = 90) -> str:
        deadline = time.monotonic() + secs
        while not is_so(self.text()):
            assert time.monotonic() < deadline, self.text()
            assert self.process.poll() is None, self.text()
            time.sleep(0.05)
        return self.text()

    def press_ctrl_c(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\3")
        self.process.stdin.flush()


Launch = Callable[..., Launcher]


@pytest.fixture
def launch(tmp_path: pathlib.Path) -> Iterator[Launch]:
    started: list[Launcher] = []

    def start(*arguments: str, has_terminal: bool = False) -> Launcher:
        started.append(Launcher(tmp_path, *arguments, has_terminal=has_terminal))
        return started[-1]

    yield start
    for launcher in started:
        if launcher.process.stdin is not None:
            launcher.process.stdin.close()
        launcher.process.terminate()
    for process in processes(tmp_path):
        process.kill()
    for launcher in started:
        launcher.process.wait(timeout=10)


def processes(folder: pathlib.Path) -> list[psutil.Process]:
    """All that run in the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            pass
    return found


def frames(text: str) -> list[int]:
    """Those of all status lines."""
    return [int(number.replace(",", "")) for number in re.findall(r"\] frames ([\d,]+)/", text)]


@pytest.mark.timeout(240)
def test_trains_survives_a_dead_actor_stops_and_resumes(
    launch: Launch, tmp_path: pathlib.Path
) -> None:
    """Cases 14, 20, 40 and 116: in a terminal, by Ctrl-C; then without one, by SIGTERM."""
    arguments = ["catch", "vtrace", "2", "4", "--logdir=run"]
    first = launch(*arguments, has_terminal=True)
    first.wait_for(lambda text: frames(text)[-1:] > [0] and text.count(" joined") == 2)

    (actor,) = [
        process
        for process in processes(tmp_path)
        if {"--run_mode=actor", "--task=1"} <= set(process.cmdline())
    ]
    before = frames(first.text())[-1]
    actor.kill()
    text = first.wait_for(lambda text: text.count("with environments 4..7 joined") == 2)
    assert "[launcher] actor 1 (environments 4-7) was killed by SIGKILL" in text
    assert text.count("with environments 0..3 joined") == 1
    count = len(frames(text))
    first.wait_for(lambda text: len(frames(text)) > count + 1)
    assert frames(first.text())[-1] > before

    pressed = time.monotonic()
    first.press_ctrl_c()
    assert first.process.wait(timeout=10) == 0, first.text()
    assert time.monotonic() - pressed < 6
    assert processes(tmp_path) == []
    last = frames(first.text())[-1]
    assert "Traceback" not in first.text()
    assert first.text().splitlines()[-1] == "[launcher] stopped; to go on, type the same command"

    again = launch(*arguments)
    again.wait_for(lambda text: bool(frames(text)))
    assert frames(again.text())[0] >= last
    again.process.send_signal(signal.SIGTERM)
    assert again.process.wait(timeout=10) == 0, again.text()
    assert processes(tmp_path) == []
    assert "Traceback" not in again.text()
    logs = [path.read_text() for path in (tmp_path / "run/logs").glob("actor*.log")]
    assert len(logs) == 2
    assert not re.search("(?m)^[EF][ 0-9]", "".join(logs))  # lines at level ERROR or above


def test_stop_while_the_learner_starts(launch: Launch, tmp_path: pathlib.Path) -> None:
    """Case 116: there is nothing to save yet, so that is no failure and loses nothing."""
    (tmp_path / "my_game.py").write_text(
        "import time\ndef make():\n    print('builds', flush=True)\n    time.sleep(60)\n"
    )
    launched = launch("my_game:make", "vtrace", "1", "4", "--logdir=run")
    launched.wait_for(lambda text: "builds" in text)
    launched.process.send_signal(signal.SIGINT)
    assert launched.process.wait(timeout=10) == 0, launched.text()
    assert "did not end in time" not in launched.text()
    assert "Traceback" not in launched.text()
    assert processes(tmp_path) == []


def test_actor_that_fails_at_once_is_shown(launch: Launch, tmp_path: pathlib.Path) -> None:
    """Case 15: exit code 1 within 60 s, with the reason at the end of the output."""
    (tmp_path / "my_game.py").write_text(
        "import sys, gymnasium\n"
        "def make():\n"
        "    if '--run_mode=actor' in sys.argv:\n"
        "        raise RuntimeError('the joystick is unplugged')\n"
        "    return gymnasium.make('CartPole-v1')\n"
    )
    launched = launch("my_game:make", "vtrace", "2", "4")
    assert launched.process.wait(timeout=60) == 1, launched.text()
    *_, before_last, last = launched.text().splitlines()
    assert re.fullmatch(r"\[actor [01]\] RuntimeError: the joystick is unplugged", before_last)
    assert "actor-" in last
    assert processes(tmp_path) == []


def test_foreign_logdir_is_refused(launch: Launch, tmp_path: pathlib.Path) -> None:
    """The learner's refusal is the launcher's, with its code; nothing there is touched."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("precious")
    launched = launch("catch", "vtrace", "1", "4", "--logdir=mine")
    assert launched.process.wait(timeout=60) == 2, launched.text()
    assert launched.text().count("mine is not empty") == 1
    assert "Traceback" not in launched.text()
    assert set(os.listdir(tmp_path / "mine")) == {"thesis.txt", "logs"}
    assert (tmp_path / "mine/thesis.txt").read_text() == "precious"
