"""Supervision of real child processes: tiny programs play learner and actors."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from seed_rl import guardian, supervisor

# Plays the learner: saves on SIGTERM, as the real one does.
LEARNER = """
import pathlib, signal, sys, time
def stop(*_):
    pathlib.Path("checkpoint").write_text("saved")
    print("learner saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("learner trains", flush=True)
while True:
    time.sleep(0.05)
"""
ACTOR = """
import time
print("actor steps", flush=True)
time.sleep(600)
"""
DEAF = """
import signal, time
for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(signum, signal.SIG_IGN)
print("deaf runs", flush=True)
time.sleep(600)
"""
# Runs `supervise` as the launcher does, over the programs of its folder.
HARNESS = """
import pathlib, sys
from seed_rl.supervisor import Policy, Program, supervise
def program(name, **words):
    path = pathlib.Path(name.replace(" ", "-") + ".py")
    return Program(name, [sys.executable, str(path)], path.with_suffix(".log"), **words)
actors = [program(path.stem.replace("-", " "), prefix=f"[{path.stem.replace('-', ' ')}] ",
                  duty=f"environments {2 * i}-{2 * i + 1}")
          for i, path in enumerate(sorted(pathlib.Path(".").glob("actor-*.py")))]
policy = Policy(**eval(sys.argv[1]))
pathlib.Path("scratch").mkdir()
sys.exit(supervise(program("learner"), actors, terminal=sys.stdout, policy=policy,
                   scratch_folder="scratch"))
"""


class Launched:
    """A launcher at work in a folder of its own, without a terminal: stdin is /dev/null."""

    def __init__(self, folder: pathlib.Path, programs: dict[str, str], policy: dict[str, float]):
        self.folder = folder
        for name, text in programs.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(text))
        (folder / "harness.py").write_text(HARNESS)
        self.output = folder / "output.txt"
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "harness.py", repr(policy)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # These tests may themselves run under nohup, which children inherit.
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
            )

    def text(self) -> str:
        return self.output.read_text()

    def wait_for(self, is_so: Callable[[str], bool], secs: float = 30) -> str:
        """The output as soon as it is so."""
        deadline = time.monotonic() + secs
        while not is_so(self.text()):
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)
        return self.text()

    def ended(self, secs: float = 30) -> int:
        return self.process.wait(timeout=secs)

    def processes(self) -> list[psutil.Process]:
        """All that run in the folder, whoever their parent is by now; also the guardian."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.cwd() == str(self.folder) and process.status() != "zombie":
                    found.append(process)
            except psutil.Error:
                pass
        return found

    def running(self, name: str) -> psutil.Process:
        return next(p for p in self.processes() if f"{name}.py" in p.cmdline())

    def wait_until_gone(self, secs: float) -> None:
        deadline = time.monotonic() + secs
        while self.processes():
            assert time.monotonic() < deadline, [p.cmdline() for p in self.processes()]
            time.sleep(0.05)


Launch = Callable[..., Launched]


@pytest.fixture
def launch(tmp_path: pathlib.Path) -> Iterator[Launch]:
    started: list[Launched] = []

    def start(learner: str = LEARNER, *actors: str, **policy: float) -> Launched:
        folder = tmp_path / f"launch{len(started)}"
        folder.mkdir()
        programs = {f"actor-{i}": text for i, text in enumerate(actors)}
        started.append(Launched(folder, {"learner": learner, **programs}, policy))
        return started[-1]

    yield start
    for launched in started:
        for process in launched.processes():
            process.kill()
        launched.process.wait(timeout=10)


def test_output_of_all_reaches_the_terminal_and_the_logs(launch: Launch) -> None:
    """Case 15: nothing that a child says is hidden in a file or another window."""
    learner = """
    import sys, time
    time.sleep(1)
    print("to stdout"); print("to stderr", file=sys.stderr)
    sys.stdout.write("no newline at the end")
    """
    actor = r"""
    import sys
    sys.stdout.buffer.write(b"two\nlines \xff\xc3\xa9\n" + b"x" * 200_000 + b"\nlast\n")
    """
    launched = launch(learner, actor, ACTOR, farewell_secs=0.2)
    assert launched.ended() == 0
    lines = launched.text().splitlines()
    for line in ("to stdout", "to stderr", "no newline at the end"):
        assert line in lines
    for line in ("[actor 0] two", "[actor 0] lines \ufffdé", "[actor 0] last"):
        assert line in lines
    assert "[actor 1] actor steps" in lines
    assert launched.text().count("x") >= 200_000
    assert "to stderr\n" in (launched.folder / "learner.log").read_text()
    assert (launched.folder / "actor-0.log").read_text(errors="replace").endswith("last\n")
    launched.wait_until_gone(5)


def test_logs_are_appended_to(launch: Launch) -> None:
    launched = launch("print('lives')", "import sys; sys.exit(1)", first_delay_secs=0.0)
    launched.ended()
    log = launched.folder / "learner.log"
    assert log.read_text().count("lives") == 1
    code = subprocess.run(
        [sys.executable, "-c", HARNESS.replace("mkdir()", "mkdir(exist_ok=True)"), "{}"],
        cwd=launched.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    assert code.returncode == 0
    assert code.stdout.decode().count("lives") == 1  # what was logged before is not shown again
    assert log.read_text().count("lives") == 2


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_stops_all_after_a_checkpoint(launch: Launch, signum: int) -> None:
    """Case 116: the learner saves, all are gone within 5 s, and the exit code is 0."""
    launched = launch(LEARNER, ACTOR, ACTOR)
    launched.wait_for(lambda text: text.count("actor steps") == 2 and "learner trains" in text)
    launched.process.send_signal(signum)
    assert launched.ended(5) == 0
    assert launched.processes() == []
    assert (launched.folder / "checkpoint").read_text() == "saved"
    assert "learner saved" in launched.text()
    assert not (launched.folder / "scratch").exists()


def test_repeated_signals_do_not_spoil_the_checkpoint(launch: Launch) -> None:
    """`timeout` and shells send a signal to the process and to its group: twice in a moment."""
    slow = LEARNER.replace("def stop(*_):", "def stop(*_):\n    time.sleep(1)")
    launched = launch(slow, ACTOR)
    launched.wait_for(lambda text: "learner trains" in text)
    for _ in range(3):
        launched.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    assert launched.ended(5) == 0
    assert (launched.folder / "checkpoint").exists()


def test_deaf_children_are_killed_at_last(launch: Launch) -> None:
    launched = launch(DEAF, DEAF)
    launched.wait_for(lambda text: text.count("deaf runs") == 2)
    launched.process.send_signal(signal.SIGTERM)
    assert launched.ended(10) == 128 + signal.SIGKILL
    assert "learner did not end in time and is killed" in launched.text()
    assert "since its last checkpoint is lost" in launched.text()
    assert "out of memory" not in launched.text()
    assert launched.processes() == []


def test_stop_of_a_learner_that_still_starts(launch: Launch) -> None:
    """It has no handler yet, and nothing to save: that is no failure."""
    launched = launch("import time; print('imports', flush=True); time.sleep(600)", ACTOR)
    launched.wait_for(lambda text: "imports" in text)
    launched.process.send_signal(signal.SIGINT)
    assert launched.ended(10) == 0
    assert launched.processes() == []


@pytest.mark.parametrize("learner", [LEARNER, DEAF])
def test_no_orphans_of_a_killed_launcher(launch: Launch, learner: str) -> None:
    """The learner still gets the chance to save, even when the launcher gets SIGKILL."""
    spawning = """
    import subprocess, sys, time
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("actor steps", flush=True)
    time.sleep(600)
    """
    launched = launch(learner, DEAF, spawning)
    launched.wait_for(lambda text: text.count("\n") >= 3)
    assert len(launched.processes()) == 6  # launcher, guardian, learner, 2 actors, a grandchild
    launched.process.kill()
    launched.process.wait()
    launched.wait_until_gone(guardian.STOP_SECS + 5)
    assert (launched.folder / "checkpoint").exists() == (learner == LEARNER)
    assert not (launched.folder / "scratch").exists()


def test_children_have_sessions_of_their_own(launch: Launch) -> None:
    """The terminal's Ctrl-C goes to the launcher's process group only."""
    launched = launch(LEARNER, ACTOR)
    launched.wait_for(lambda text: "actor steps" in text and "learner trains" in text)
    for name in ("learner", "actor-0"):
        pid = launched.running(name).pid
        assert os.getsid(pid) == os.getpgid(pid) == pid
        assert pathlib.Path(f"/proc/{pid}/fd/0").resolve() == pathlib.Path("/dev/null")


def test_killed_actor_is_restarted(launch: Launch) -> None:
    """The log says which environments are affected, and how the actor died."""
    launched = launch(LEARNER, ACTOR, ACTOR, first_delay_secs=0.1)
    launched.wait_for(lambda text: text.count("actor steps") == 2)
    launched.running("actor-1").kill()
    text = launched.wait_for(lambda text: text.count("[actor 1] actor steps") == 2)
    assert (
        "[launcher] actor 1 (environments 2-3) was killed by SIGKILL (out of memory?); "
        "it starts again in 0.1 s" in text
    )
    assert text.count("[actor 0] actor steps") == 1
    launched.process.send_signal(signal.SIGTERM)
    assert launched.ended(10) == 0


def test_what_a_dead_actor_left_behind_is_killed(launch: Launch) -> None:
    leaving = """
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("left", child.pid, flush=True)
    time.sleep(600)
    """
    launched = launch(LEARNER, leaving, first_delay_secs=60)
    text = launched.wait_for(lambda text: "left" in text)
    left = psutil.Process(int(text.partition("left ")[2].split()[0]))
    launched.running("actor-0").kill()
    launched.wait_for(lambda text: "was killed by SIGKILL" in text)
    _, alive = psutil.wait_procs([left], timeout=5)
    assert not [process for process in alive if process.status() != "zombie"]


def test_actor_that_keeps_failing_ends_the_launcher(launch: Launch) -> None:
    """Case 15: within 60 s the launcher exits with that traceback at the end, not with 0."""
    failing = """
    def step():
        raise RuntimeError("no such thing as a free lunch")
    step()
    """
    launched = launch(LEARNER, ACTOR, failing)  # with the real policy
    assert launched.ended(60) == 1
    text = launched.text()
    assert text.count("[launcher] actor 1 (environments 2-3) exited with code 1; it starts") == 2
    end = text[text.index("stopped, since actor 1 kept failing") :].splitlines()
    assert end[1] == "[actor 1] Traceback (most recent call last):"
    assert end[-2] == "[actor 1] RuntimeError: no such thing as a free lunch"
    assert end[-1].startswith("[launcher] all of it is in actor-1.log")
    assert (launched.folder / "checkpoint").exists()
    assert launched.processes() == []


def test_actor_that_fails_now_and_then_lives_on(launch: Launch) -> None:
    """Case 64: only failures in quick succession count."""
    failing = "import sys, time; print('steps', flush=True); time.sleep(0.5); sys.exit(3)"
    launched = launch(LEARNER, failing, quick_secs=0.2, short_secs=0.2, first_delay_secs=0.0)
    launched.wait_for(lambda text: text.count("[actor 0] steps") >= 5)
    assert launched.process.poll() is None
    assert "exited with code 3; it starts again" in launched.text()


def test_actor_that_fails_slowly_is_given_up(launch: Launch) -> None:
    """Case 15: it needs longer than `quick_secs` before it comes to what always fails."""
    failing = "import sys, time; time.sleep(0.5); sys.exit(3)"
    launched = launch(LEARNER, failing, quick_secs=0.2, short_secs=20.0, first_delay_secs=0.0)
    assert launched.ended() == 3
    text = launched.text()
    assert text.count("exited with code 3; it starts again") == 4
    assert "exited with code 3, 5 times in a row after less than 20 s" in text
    assert (launched.folder / "checkpoint").exists()


def test_actor_that_ends_as_if_finished_is_given_up(launch: Launch) -> None:
    """An environment calls exit: code 0 is a failure as long as the learner goes on."""
    leaving = "import os; print('leaves', flush=True); os._exit(0)"
    launched = launch(LEARNER, leaving, ACTOR, finished_delay_secs=0.3, first_delay_secs=0.1)
    assert launched.ended() == 1
    text = launched.text()
    assert (
        "[launcher] actor 0 (environments 0-1) exited with code 0 before training was over; "
        "it starts again in 0.1 s" in text
    )
    assert text.count("before training was over") == 2
    assert text.splitlines()[-2] == "[actor 0] leaves"
    assert (launched.folder / "checkpoint").exists()


def test_refusal_of_the_learner_is_shown_once(launch: Launch) -> None:
    refusing = "import sys; print('seed_rl: no such flag', flush=True); sys.exit(2)"
    launched = launch(refusing, ACTOR)
    assert launched.ended() == 2
    assert launched.text().count("no such flag") == 1
    assert "[launcher] the learner exited with code 2; why stands above and in learner.log" in (
        launched.text()
    )


def test_learner_failure_ends_all(launch: Launch) -> None:
    """Case 70: with the learner's traceback at the end, and its code."""
    failing = """
    import sys, time
    time.sleep(0.5)
    try:
        raise ValueError("loss is not finite")
    except ValueError:
        import traceback
        traceback.print_exc()
        sys.exit(7)
    """
    launched = launch(failing, ACTOR, DEAF)
    assert launched.ended(20) == 7
    end = launched.text()[launched.text().index("[launcher] the learner exited with code 7") :]
    assert end.splitlines()[1] == "Traceback (most recent call last):"
    assert end.splitlines()[-2] == "ValueError: loss is not finite"
    assert launched.processes() == []


def test_killed_learner_ends_all(launch: Launch) -> None:
    launched = launch(LEARNER, ACTOR)
    launched.wait_for(lambda text: "learner trains" in text)
    launched.running("learner").kill()
    assert launched.ended(10) == 128 + signal.SIGKILL
    assert "the learner was killed by SIGKILL (out of memory?)" in launched.text()
    assert launched.processes() == []


def test_learner_that_fails_while_it_stops_is_a_failure(launch: Launch) -> None:
    launched = launch(LEARNER.replace("sys.exit(0)", "raise OSError('disk full')"), ACTOR)
    launched.wait_for(lambda text: "learner trains" in text)
    launched.process.send_signal(signal.SIGINT)
    assert launched.ended(10) == 1
    assert launched.text().splitlines()[-2] == "OSError: disk full"


def test_finished_actors_are_not_restarted(launch: Launch) -> None:
    """Case 116: actors end first when training is over, and the learner saves once more."""
    learner = "import time; time.sleep(2); print('finished', flush=True)"
    launched = launch(learner, "print('told to go', flush=True)")
    assert launched.ended() == 0
    assert launched.text().count("told to go") == 1


def test_lost_terminal_does_not_end_training(launch: Launch, tmp_path: pathlib.Path) -> None:
    """`launcher | head` and a tee that dies of the same Ctrl-C: the stop stays orderly."""
    talking = LEARNER.replace("while True:", "while True:\n    print('talks', flush=True)")
    launched = launch(talking, ACTOR)
    launched.wait_for(lambda text: "learner trains" in text)
    launched.process.send_signal(signal.SIGTERM)
    assert launched.ended(10) == 0
    (launched.folder / "scratch").mkdir(exist_ok=True)
    piped = subprocess.Popen(
        [sys.executable, "-c", HARNESS.replace("mkdir()", "mkdir(exist_ok=True)"), "{}"],
        cwd=launched.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert piped.stdout is not None
    assert piped.stdout.readline()
    piped.stdout.close()
    (launched.folder / "checkpoint").unlink()
    time.sleep(1)
    assert piped.poll() is None
    piped.send_signal(signal.SIGINT)
    assert piped.wait(timeout=10) == 0
    assert (launched.folder / "checkpoint").exists()


@pytest.mark.parametrize(
    ("code", "words", "shell_code"),
    [
        (0, "exited with code 0", 0),
        (3, "exited with code 3", 3),
        (-11, "was killed by SIGSEGV", 139),
        (-9, "was killed by SIGKILL (out of memory?)", 137),
        (-35, "was killed by signal 35", 163),
    ],
)
def test_exit_codes_in_words(code: int, words: str, shell_code: int) -> None:
    assert supervisor.describe_exit(code) == words
    assert supervisor.shell_code(code) == shell_code
