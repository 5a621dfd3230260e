"""The launcher's command line: what it starts, and what it refuses."""

import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from seed_rl import launcher


def usage_error(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a wrong command line is answered with."""
    assert launcher.main(argv) == 2
    line, usage = capsys.readouterr().err.splitlines()
    assert usage == launcher.USAGE
    return line


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ["GAME AGENT NUM_ACTORS", "nothing"]),
        (["catch", "vtrace"], ["GAME AGENT NUM_ACTORS", "catch vtrace"]),
        (["catch", "vtrace", "1", "2", "3"], ["GAME AGENT NUM_ACTORS", "catch vtrace 1 2 3"]),
        (["--seed=1", "catch", "vtrace", "1"], ["before the flags", "nothing"]),
        (["catch", "vtrace", "1", "--logdir=gs://b/run"], ["gs://b/run", "this machine"]),
        (["catch", "vtrace", "two"], ["NUM_ACTORS", "at least 1", "'two'"]),
        (["catch", "vtrace", "0"], ["NUM_ACTORS", "at least 1", "'0'"]),
        (["catch", "vtrace", "2", "0"], ["ENVS_PER_ACTOR", "at least 1", "'0'"]),
        (["catch", "vtrace", "2", "1.5"], ["ENVS_PER_ACTOR", "at least 1", "'1.5'"]),
        (["catch", "vtrace", "2", "--agent=r2d2"], ["--agent", "second word"]),
        (["catch", "vtrace", "2", "--run_mode", "actor"], ["--run_mode"]),
        (["no_such", "vtrace", "2"], ["no_such", "atari, catch"]),
        (["catch", "no_such", "2"], ["no_such", "vtrace"]),
        (["no_such_module:make", "vtrace", "2"], ["no module no_such_module"]),
        (
            ["gym", "r2d2", "2", "--game=Pendulum-v1"],
            ["--agent=r2d2: wanted one", "saw float32[1]"],
        ),
        (["gym", "r2d2", "2", "--game=NoSuch-v0"], ["--game=NoSuch-v0", "doesn't exist"]),
        (["catch", "vtrace", "2", "--batch_size=many"], ["batch_size", "many"]),
        (["catch", "vtrace", "2", "--server_address=localhost:0"], ["localhost:0", "port"]),
    ],
)
def test_wrong_usage(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    argv: Sequence[str],
    words: Sequence[str],
) -> None:
    """Exit code 2 and one line that names what is wrong; nothing is started or left behind."""
    monkeypatch.chdir(tmp_path)
    line = usage_error(capsys, *argv)
    for word in words:
        assert word in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("actors", "envs", "flags", "refusal"),
    [
        (1, 1, [], None),
        (2, 16, [], None),
        (3, 5, ["--inference_batch_size=15"], None),
        (3, 5, ["--inference_batch_size=5"], None),
        (3, 5, ["--num_envs=15", "--env_batch_size=5"], None),
        (3, 5, ["--env_groups=5"], None),
        (3, 5, ["--env_groups=6"], ["--env_groups is 6", "at most 5"]),
        (2, 16, ["--num_envs=48"], ["--num_envs=48", "2 actors x 16 environments = 32"]),
        (2, 16, ["--num_envs=40"], ["40", "16", "32", "8"]),
        (2, 16, ["--env_batch_size", "8"], ["--env_batch_size=8", "16"]),
        (2, 16, ["--env_batch_size=5"], ["32", "5"]),
        (3, 5, ["--inference_batch_size=4"], ["4", "5"]),
        (3, 5, ["--inference_batch_size=16"], ["16", "15"]),
        (3, 5, ["--inference_batch_size=0"], ["0", "-1"]),
    ],
)
def test_sizes(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    actors: int,
    envs: int,
    flags: list[str],
    refusal: list[str] | None,
) -> None:
    """Case 24: each combination of sizes runs, or is refused with the arithmetic."""
    monkeypatch.chdir(tmp_path)
    argv = ["catch", "vtrace", str(actors), str(envs), *flags]
    if refusal is not None:
        line = usage_error(capsys, *argv)
        for number in refusal:
            assert number in line
        return
    plan = launcher.make_plan(launcher.parse_words(argv), "scratch")
    assert f"--num_envs={actors * envs}" in plan.learner.command
    assert f"--env_batch_size={envs}" in plan.learner.command
    assert len(plan.actors) == actors
    first = (actors - 1) * envs
    assert plan.actors[-1].duty.split()[-1] in (str(first), f"{first}-{first + envs - 1}")


def test_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--seed", "5", "--reconnect_secs", "7", "--token=a b", "--env_groups=2"]
    argv = ["catch", "vtrace", "2", *flags]
    plan = launcher.make_plan(launcher.parse_words(argv), "scratch")
    assert plan.learner.command[:3] == (sys.executable, "-m", "seed_rl")
    learner = plan.learner.command[3:]
    assert learner[:3] == ("--run_mode=learner", "--environment=catch", "--agent=vtrace")
    for word in ("--num_envs=32", "--env_batch_size=16", "--seed", "5", *flags[-2:]):
        assert word in learner
    assert "--reconnect_secs" not in learner
    actor = plan.actors[1].command[3:]
    for word in ("--run_mode=actor", "--task=1", "--reconnect_secs", "7", *flags[-2:]):
        assert word in actor
    assert "--seed" not in actor
    assert "--server_address=unix:scratch/learner" in learner
    assert "--server_address=unix:scratch/learner" in actor
    assert (plan.logdir.parent, plan.logdir.name[:13]) == (pathlib.Path("logs"), "catch-vtrace-")
    assert f"--logdir={plan.logdir}" in learner
    assert plan.learner.log == plan.logdir / "logs" / "learner.log"


def test_default_logdirs_never_meet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda _: "now")
    made = [str(launcher.make_logdir("my.envs:make", "a/b", "vtrace")) for _ in range(3)]
    stem = "logs/my.envs_make-a_b-vtrace-now"
    assert made == [stem, f"{stem}-2", f"{stem}-3"]


@pytest.mark.parametrize(
    ("served", "connected"),
    [
        ("localhost:8686", "localhost:8686"),
        ("0.0.0.0:8686", "127.0.0.1:8686"),
        ("[::]:8686", "[::1]:8686"),
        ("[fe80::1]:8686", "[fe80::1]:8686"),
        ("unix:relative/socket", "unix:relative/socket"),
        ("unix:///a:0", "unix:///a:0"),
    ],
)
def test_connect_address(served: str, connected: str) -> None:
    """Case 23: what a learner serves to other machines is found from its own, too."""
    assert launcher.connect_address(served) == connected


def test_split_flags() -> None:
    words = ["--seed=1", "-x", "-0.5", "--noverbose", "--token", "t", "--reconnect_secs=3", "--y"]
    learner, actor = launcher.split_flags(
        words, {"seed", "token"}, {"reconnect_secs", "token", "verbose"}
    )
    assert learner == ["--seed=1", "-x", "-0.5", "--token", "t", "--y"]
    assert actor == ["--noverbose", "--token", "t", "--reconnect_secs=3"]


def test_scratch_folder_leaves_room_for_a_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Case 119: a unix socket's path is short, a TMPDIR may be long."""
    long_folder = tmp_path / ("x" * 100)
    long_folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long_folder))
    folder = launcher.make_scratch_folder()
    try:
        assert len(f"{folder}/learner") <= 107
    finally:
        os.rmdir(folder)


def test_log_dir_in_use(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Refused in one line, before anything is written to the logs that are in use."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "supervise", lambda *programs, **options: 0)
    (tmp_path / "run").mkdir()
    argv = ["catch", "vtrace", "1", "--logdir=run"]
    with open(tmp_path / "run" / launcher.LOCK_FILE, "w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        assert launcher.main(argv) == 2
        printed = capsys.readouterr()
        assert printed.err == "another learner runs in run; choose another --logdir\n"
        assert printed.out == ""
    assert launcher.main(argv) == 0
    with open(tmp_path / "run" / launcher.LOCK_FILE, "w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it has been released


def test_lock_file_is_the_learners() -> None:
    from seed_rl import experiment

    assert experiment.LOCK_FILE == launcher.LOCK_FILE


def test_tensorboard_command(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """A newcomer's PATH has no virtual environment in it."""
    bin_folder = tmp_path / "a venv/bin"
    bin_folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(bin_folder / "python"))
    assert launcher.tensorboard_command() == "tensorboard"
    (bin_folder / "tensorboard").touch()
    monkeypatch.chdir(tmp_path)
    assert launcher.tensorboard_command() == "'a venv/bin/tensorboard'"
    monkeypatch.chdir("/")
    command = launcher.tensorboard_command()
    assert (pathlib.Path("/") / command.strip("'")) == bin_folder / "tensorboard"
    monkeypatch.chdir(bin_folder)
    assert launcher.tensorboard_command() == f"'{bin_folder}/tensorboard'"
    monkeypatch.setenv("SEED_RL_TENSORBOARD", "docker run IMAGE tensorboard.main")
    assert launcher.tensorboard_command() == "docker run IMAGE tensorboard.main"


@pytest.mark.parametrize("flags", [[], ["--logdir=run"]])
def test_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, flags: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = []
    monkeypatch.setattr(
        launcher, "supervise", lambda *programs, after_stop, **options: lines.append(after_stop)
    )
    launcher.main(["catch", "vtrace", "1", *flags])
    (line,) = lines
    assert line.startswith("stopped; to go on, type the same command")
    assert (" with --logdir=logs/catch-vtrace-" in line) == (not flags)


def test_stop_during_the_imports_of_the_launcher(tmp_path: pathlib.Path) -> None:
    """Ctrl-C then: nothing has been started, so there is nothing to say."""
    (tmp_path / "my_game.py").write_text(
        "import time\nprint('imports', flush=True)\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "seed_rl.launcher", "my_game:make", "vtrace", "1"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "imports\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 0
        assert process.stdout.read() == ""
    finally:
        process.kill()
        process.communicate()
    assert {path.name for path in tmp_path.iterdir()} <= {"my_game.py", "__pycache__"}


def test_help_needs_nothing_installed() -> None:
    """By a Python that finds only the standard library and this checkout."""
    root = pathlib.Path(launcher.__file__).parent.parent
    result = subprocess.run(
        [sys.executable, "-S", "-m", "seed_rl.launcher", "--help"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == launcher.HELP
    assert max(map(len, launcher.HELP.splitlines())) <= 100


@pytest.mark.parametrize("agent", ["vtrace", "r2d2"])
def test_launcher_needs_no_tensorflow(tmp_path: pathlib.Path, agent: str) -> None:
    """It lives as long as the training, beside it: nothing large should lie in its memory."""
    code = (
        "import sys; from seed_rl import launcher; "
        f"launcher.make_plan(launcher.parse_words(['catch', '{agent}', '1']), 'scratch'); "
        "print('tensorflow' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert result.stdout.strip() == "False", result.stderr
