"""The two commands of the README, run as on a machine that has little more than Python."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
SCRIPTS = [
    ROOT / "run_local.sh",
    ROOT / ".ci/run",
    *sorted((ROOT / "docker").glob("*.sh")),
    *sorted((ROOT / "gcp").glob("*.sh")),
    *sorted((ROOT / "scripts").glob("*.sh")),
]
# Found on every machine, yet not on ours: case 13 and 14.
ABSENT = {"tmux", "screen", "docker", "apt-get", "sudo"}


@pytest.fixture
def commands(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with the system's commands, for PATH. Without tmux, Docker, and any Python."""
    folder = tmp_path / "commands"
    folder.mkdir()
    for source in (pathlib.Path("/usr/bin"), pathlib.Path("/bin")):
        for command in source.iterdir():
            link = folder / command.name
            is_wanted = not command.name.startswith("python") and command.name not in ABSENT
            if is_wanted and not link.is_symlink():
                link.symlink_to(command)
    return folder


def add_command(commands: pathlib.Path, name: str, text: str) -> None:
    (commands / name).unlink(missing_ok=True)  # else the system's own would be written to
    (commands / name).write_text(f"#!/bin/sh\n{text}\n")
    (commands / name).chmod(0o755)


def add_python(commands: pathlib.Path, name: str = "python3") -> None:
    """The Python that the virtual environment of the tests was made with."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    add_command(commands, name, f'exec "{sys.base_prefix}/bin/{version}" "$@"')


def run(
    commands: pathlib.Path, *command: str | pathlib.Path, **environment: str | pathlib.Path
) -> subprocess.CompletedProcess[str]:
    """Runs with stdin closed, without a terminal, from a folder that is not the checkout."""
    return subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command],
        cwd=commands.parent,
        env={
            "HOME": str(commands.parent),
            "PATH": str(commands),
            "SEED_RL_NATIVE": "0",  # to build it takes long: only where that is what is tested
            **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        start_new_session=True,
    )


def ensure(
    commands: pathlib.Path,
    checkout: pathlib.Path,
    venv: pathlib.Path,
    *extras: str,
    **environment: str,
) -> str:
    """What `ensure_venv` says."""
    script = f'set -euo pipefail; source "$0"; ensure_venv {" ".join(extras)}; echo made'
    command = ["bash", "-c", script, checkout / "scripts/venv.sh"]
    result = run(commands, *command, SEED_RL_VENV=venv, **environment)
    assert result.returncode == 0, result.stdout
    assert result.stdout.endswith("made\n")
    return result.stdout


@pytest.mark.usefixtures("offline_pip")
def test_first_start_and_next(
    commands: pathlib.Path, checkout: pathlib.Path, offline_venv: pathlib.Path
) -> None:
    """Cases 13, 14 and 116: installs and trains to the end, without a terminal, tmux or Docker."""
    add_python(commands)
    start = [checkout / "run_local.sh", "catch", "vtrace", "2", "4"]
    first = run(
        commands,
        *start,
        "--total_environment_frames=2000",
        "--logdir=a log dir",
        SEED_RL_VENV=offline_venv,
    )
    assert first.returncode == 0, first.stdout
    assert "seed_rl: installing into" in first.stdout
    assert "[launcher] to watch: tensorboard --logdir 'a log dir'" in first.stdout
    assert (offline_venv / "seed_rl.stamp").read_text().splitlines()[1] == ""  # no extras
    logdir = commands.parent / "a log dir"
    assert list((logdir / "checkpoints").iterdir())
    assert {log.name for log in (logdir / "logs").iterdir()} == {
        "learner.log",
        "actor-0.log",
        "actor-1.log",
    }

    again = run(commands, *start, "--no_such_flag=1", SEED_RL_VENV=offline_venv)
    assert again.returncode == 2
    assert "installing" not in again.stdout
    assert "no_such_flag" in again.stdout


@pytest.mark.usefixtures("offline_pip")
def test_installs_again_only_when_needed(
    commands: pathlib.Path, checkout: pathlib.Path, offline_venv: pathlib.Path
) -> None:
    add_python(commands)
    assert "installing" in ensure(commands, checkout, offline_venv)
    assert ensure(commands, checkout, offline_venv) == "made\n"
    assert "installing" in ensure(commands, checkout, offline_venv, "atari")
    assert "installing" in ensure(commands, checkout, offline_venv, "mujoco", "test", "dev")
    # No command undoes another's extras.
    stamp = (offline_venv / "seed_rl.stamp").read_text().splitlines()
    assert stamp[1] == "atari mujoco test dev"
    assert ensure(commands, checkout, offline_venv) == "made\n"
    assert ensure(commands, checkout, offline_venv, "atari") == "made\n"
    assert ensure(commands, checkout, offline_venv, "atari", "test", "dev") == "made\n"

    with open(checkout / "setup.py", "a") as setup:
        setup.write("# A new dependency.\n")
    assert "installing" in ensure(commands, checkout, offline_venv, "atari")

    moved = checkout.rename(checkout.with_name("moved"))
    assert "installing" in ensure(commands, moved, offline_venv, "atari")


@pytest.mark.parametrize(
    ("family", "extras"),
    [("atari", "atari\n"), ("mujoco", "mujoco\n"), ("gym", ""), ("catch", ""), ("my_env:Env", "")],
)
def test_extras_are_those_of_the_family(commands: pathlib.Path, family: str, extras: str) -> None:
    script = 'set -euo pipefail; source "$0"; extras_of "$1"'
    result = run(commands, "bash", "-c", script, ROOT / "scripts/venv.sh", family)
    assert (result.returncode, result.stdout) == (0, extras)


@pytest.mark.usefixtures("offline_pip")
def test_native_core_is_built_when_it_can_be(
    commands: pathlib.Path,
    checkout: pathlib.Path,
    offline_venv: pathlib.Path,
    tiny_native: pathlib.Path,
) -> None:
    """Without a compiler, one line says what to type; nothing is tried again before it is there."""
    add_python(commands)
    for name in ("c++", "g++", "clang++", *(path.name for path in commands.glob("*-gnu-g++"))):
        (commands / name).unlink(missing_ok=True)
    # As on a machine without the network.
    apt_calls = commands.parent / "apt_calls"
    add_command(commands, "apt-get", 'echo "$*" >>"$HOME/apt_calls"; exit 100')

    def start() -> tuple[bool, list[str]]:
        said = ensure(commands, checkout, offline_venv, "atari", SEED_RL_NATIVE="").splitlines()
        return any("installing into" in line for line in said), [
            line for line in said if "native core" in line
        ]

    why = (
        "seed_rl: no native core, the Python core takes its place: found no C++ compiler; "
        "type: sudo apt-get install g++ libnghttp2-dev, then install seed_rl again"
    )
    installs, lines = start()
    assert installs
    assert set(lines) == {why}  # pip's and ours
    if os.geteuid() == 0:
        assert apt_calls.read_text().splitlines() == [
            "update -qq",
            "install -y -qq --no-install-recommends g++ libnghttp2-dev",
        ]
    else:
        assert not apt_calls.exists()
    apt_calls.unlink(missing_ok=True)

    assert start() == (False, [why])
    assert not list(checkout.glob("grpc/python/*.so"))

    system = shutil.which("g++") or shutil.which("c++")
    assert system is not None
    (commands / "g++").symlink_to(system)
    assert start() == (True, [])
    (built,) = checkout.glob("grpc/python/_native.*.so")
    assert not (checkout / "grpc/python/_native_missing.txt").exists()
    code = "from seed_rl.grpc import _native; print(_native.__file__, _native.nghttp2)"
    result = run(commands, offline_venv / "bin/python", "-c", code)
    assert result.stdout.startswith(f"{built} 1."), result.stdout
    (commands / "g++").unlink()
    assert start() == (False, [])  # what is built stays

    # Other C++ files do not compile, and that is not tried again either.
    (commands / "g++").symlink_to(system)
    with open(tiny_native / "tiny.h", "a") as header:
        header.write("#error out of order\n")
    installs, lines = start()
    assert installs
    (line,) = set(lines)
    assert "it doesn't compile: " in line
    assert line.endswith("tiny.h:3:2: error: #error out of order")
    assert start() == (False, [line])
    assert not built.exists()
    assert not apt_calls.exists()


@pytest.mark.usefixtures("offline_pip")
def test_failed_installation_is_taken_up_again(
    commands: pathlib.Path, checkout: pathlib.Path, offline_venv: pathlib.Path
) -> None:
    add_python(commands)
    good = (checkout / "setup.py").read_text()
    (checkout / "setup.py").write_text("raise SystemExit('no network')\n")
    failed = run(
        commands, checkout / "run_local.sh", "catch", "vtrace", "1", SEED_RL_VENV=offline_venv
    )
    assert failed.returncode == 1
    assert "the installation failed; start again" in failed.stdout
    (checkout / "setup.py").write_text(good)
    assert "installing" in ensure(commands, checkout, offline_venv, "atari")


def test_makes_the_venv(commands: pathlib.Path, checkout: pathlib.Path) -> None:
    """In the checkout by default, and anew when it is damaged."""
    add_python(commands, "python3.10")
    add_command(commands, "python3", "echo Python 3.8.10; exit 1")
    script = 'set -euo pipefail; source "$0"; make_venv "$root/.venv"'
    make = ["bash", "-c", script, checkout / "scripts/venv.sh"]
    python = checkout / ".venv/bin/python"
    result = run(commands, *make)
    assert result.returncode == 0, result.stdout
    assert "making a virtual environment in" in result.stdout
    assert python.exists()
    assert run(commands, *make).stdout == ""
    python.unlink()
    assert "is damaged and made anew" in run(commands, *make).stdout
    assert python.exists()


def test_folder_of_the_user_is_not_made_a_venv(
    commands: pathlib.Path, checkout: pathlib.Path
) -> None:
    add_python(commands)
    (commands.parent / "mine").mkdir()
    (commands.parent / "mine/thesis.txt").write_text("precious")
    result = run(commands, checkout / "run_local.sh", "catch", "vtrace", "1", SEED_RL_VENV="mine")
    assert result.returncode == 1
    assert "is no virtual environment" in result.stdout
    assert (commands.parent / "mine/thesis.txt").read_text() == "precious"


@pytest.mark.parametrize(
    ("python3", "wanted"),
    [
        (None, "found no python3; type: sudo apt-get install python3 python3-venv"),
        (
            '[ "$1" = --version ] && echo Python 3.8.10; exit 1',
            "wanted Python 3.10 or later, found only Python 3.8.10",
        ),
        (
            'case "$*" in *ensurepip*) exit 1;; esac',
            "python3 can't make virtual environments; type: sudo apt-get install python3-venv",
        ),
    ],
)
def test_no_python_to_run_on(
    commands: pathlib.Path, checkout: pathlib.Path, python3: str | None, wanted: str
) -> None:
    """One line that says what to type."""
    if python3 is not None:
        add_command(commands, "python3", python3)
    result = run(commands, checkout / "run_local.sh", "catch", "vtrace", "1")
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == f"seed_rl: {wanted}"
    assert not (checkout / ".venv").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may install packages")
def test_root_installs_what_is_missing(commands: pathlib.Path, checkout: pathlib.Path) -> None:
    """Debian's python3 without python3-venv."""
    add_command(commands, "python3", 'case "$*" in *ensurepip*) [ -e "$HOME/installed" ];; esac')
    add_command(
        commands, "apt-get", 'echo "apt-get $*"; [ "$1" = update ] || touch "$HOME/installed"'
    )
    script = 'set -euo pipefail; source "$0"; find_python; echo "found $python"'
    result = run(commands, "bash", "-c", script, checkout / "scripts/venv.sh")
    assert result.returncode == 0, result.stdout
    assert "python3-venv" in result.stdout
    assert result.stdout.endswith("found python3\n")


def install_football(
    commands: pathlib.Path, python: str, script: pathlib.Path = ROOT / "scripts/install_football.sh"
) -> subprocess.CompletedProcess[str]:
    """With a Python that does these lines of sh."""
    add_command(commands, "python3", python)
    return run(commands, script, PYTHON="python3")


def test_football_that_is_installed_is_left_alone(commands: pathlib.Path) -> None:
    """It takes no compiler, no apt and no network to see that."""
    done = install_football(commands, '[ "$1" = - ]')
    assert (done.returncode, done.stdout) == (0, "")


def test_football_without_debian_packages_says_what_to_type(commands: pathlib.Path) -> None:
    """One line, before anything is downloaded or built."""
    add_command(
        commands,
        "dpkg-query",
        'case "$*" in *cmake | *libsdl2-*) exit 1;; esac; echo install ok installed',
    )
    done = install_football(commands, "exit 1")
    assert done.returncode == 1
    assert done.stdout == (
        "seed_rl: Google Research Football needs Debian packages to be built; type: sudo apt-get "
        "install cmake libsdl2-image-dev libsdl2-ttf-dev libsdl2-gfx-dev\n"
    )


def test_football_for_a_python_without_boost_is_refused(commands: pathlib.Path) -> None:
    """Debian's Boost.Python is for Debian's Python."""
    add_command(commands, "dpkg-query", "echo install ok installed")
    add_command(commands, "cmake", "exit 1")
    done = install_football(commands, '[ "$1" = -c ] && echo 3.99')
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith(
        "seed_rl: found no libboost_python399, the Boost.Python of Python 3.99: Debian's is for"
    )


def test_football_that_does_not_work_once_built_is_an_error(commands: pathlib.Path) -> None:
    """The build gets this very Python in PATH, and nothing counts as installed but what starts."""
    add_command(commands, "dpkg-query", "echo install ok installed")
    for command in ("c++", "make", "cmake"):
        add_command(commands, command, "exit 0")
    done = install_football(
        commands,
        'case "$1 $3" in -*install) echo "pip $*"; echo "finds $(command -v python3)";; '
        '"-c "*) echo 3.11;; *) exit 1;; esac',
    )
    assert done.returncode == 1
    assert "gfootball==2.10.2 gym==0.23.1 six==" in done.stdout
    assert f"finds {commands}/python3\n" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("seed_rl: gfootball is installed, but 'python3")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["atari", "vtrace", "2", "16", "-h"], 0),
        ([], 2),
        (["atari", "vtrace"], 2),
        (["atari", "vtrace", "--seed=1", "--game=pong"], 2),
        (["atari", "vtrace", "2", "16", "32"], 2),
    ],
)
def test_usage_needs_no_installation(
    commands: pathlib.Path, checkout: pathlib.Path, arguments: list[str], code: int
) -> None:
    add_python(commands)
    result = run(commands, checkout / "run_local.sh", *arguments)
    assert result.returncode == code
    assert "usage: run_local.sh GAME AGENT NUM_ACTORS" in result.stdout
    assert len(result.stdout.splitlines()) > 10 if code == 0 else 2
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("words", "image", "gpus"),
    [
        (["--docker", "football", "vtrace", "2"], "seed_rl:football-cpu", False),
        (["football", "vtrace", "2", "--docker=gpu"], "seed_rl:football-gpu", True),
    ],
)
def test_docker_takes_the_place_of_the_installation(
    commands: pathlib.Path, checkout: pathlib.Path, words: list[str], image: str, gpus: bool
) -> None:
    """No Python is needed, nothing is installed, and all other words reach the container."""
    add_command(commands, "docker", 'printf "%s\\n" "$*" >>"$HOME/calls"')
    result = run(commands, checkout / "run_local.sh", *words, "--game=1_vs_1_easy")
    assert (result.returncode, result.stdout) == (0, "")
    asks, inspects, runs = (commands.parent / "calls").read_text().splitlines()
    assert asks.startswith("version ")
    assert inspects == f"image inspect {image}"
    assert runs.startswith("run --rm --init --user ")
    assert (" --gpus all " in runs) == gpus
    assert runs.endswith(f" {image} seed_rl.launcher football vtrace 2 --game=1_vs_1_easy")
    assert not (checkout / ".venv").exists()


def test_without_docker_one_line_says_so(commands: pathlib.Path, checkout: pathlib.Path) -> None:
    """It is looked for before anything is made or installed."""
    result = run(commands, checkout / "run_local.sh", "--docker", "catch", "vtrace", "2")
    assert result.returncode == 1
    (line,) = result.stdout.splitlines()
    assert line.startswith("seed_rl: found no docker; install Docker")
    assert line.endswith("or leave out --docker")


@pytest.mark.parametrize("word", ["--docker=tpu", "--docker="])
def test_docker_of_another_kind_is_refused(
    commands: pathlib.Path, checkout: pathlib.Path, word: str
) -> None:
    result = run(commands, checkout / "run_local.sh", "catch", "vtrace", "2", word)
    assert result.returncode == 2
    assert "wanted --docker, --docker=cpu or --docker=gpu" in result.stdout


def test_python_of_typecheck_may_be_relative(
    commands: pathlib.Path, checkout: pathlib.Path
) -> None:
    """As CONTRIBUTING.md says it."""
    add_command(commands, "of_mine", 'echo "checks with $0: $*"')
    script = checkout / "scripts/typecheck.sh"
    result = run(commands, script, "--verbose", PYTHON="commands/of_mine")
    assert result.returncode == 0, result.stdout
    assert f"checks with {commands}/of_mine: -m mypy" in result.stdout
    assert result.stdout.endswith("-p seed_rl --verbose\n")


@pytest.mark.parametrize("command", [["shellcheck", "-x"], ["shfmt", "-i", "4", "-ci", "-d"]])
def test_style(command: list[str]) -> None:
    beside = pathlib.Path(sys.executable).parent / command[0]
    program = str(beside) if beside.exists() else shutil.which(command[0])
    if program is None:
        pytest.skip(f"{command[0]} is not installed: it comes with the extra [dev]")
    result = subprocess.run(
        [program, *command[1:], *SCRIPTS], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_can_be_started(script: pathlib.Path) -> None:
    """Those that are run, not sourced."""
    starts_itself = script.read_text().startswith("#!")
    assert os.access(script, os.X_OK) == starts_itself


def test_atari_py_without_a_compiler(commands: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """One line says what to type."""
    for name in ("g++", "make"):
        (commands / name).unlink(missing_ok=True)
    (tmp_path / "venv/bin").mkdir(parents=True)
    add_command(tmp_path / "venv/bin", "python", 'case "$*" in *atari_py*) exit 1;; esac')
    script = ROOT / "scripts/install_atari_py.sh"
    result = run(commands, script, SEED_RL_VENV=tmp_path / "venv")
    assert result.returncode == 1
    assert result.stdout == (
        "seed_rl: atari-py can't be built; type: sudo apt-get install g++ make zlib1g-dev\n"
    )


@pytest.mark.skipif(
    importlib.util.find_spec("atari_py") is None or importlib.util.find_spec("gym") is None,
    reason="atari-py is not installed: type scripts/install_atari_py.sh",
)
def test_atari_py_is_installed_once(commands: pathlib.Path) -> None:
    (commands / "g++").unlink(missing_ok=True)  # nothing can be built
    result = run(commands, ROOT / "scripts/install_atari_py.sh", SEED_RL_VENV=sys.prefix)
    assert (result.returncode, result.stdout) == (0, "seed_rl: atari-py is there and has ROMs\n")


@pytest.mark.parametrize(("name", "code"), [("INT", 130), ("TERM", 143)])
def test_an_interrupted_start_takes_nothing_for_damaged(
    commands: pathlib.Path, tmp_path: pathlib.Path, name: str, code: int
) -> None:
    """A Python that is interrupted while it starts exits with 1, as a broken one would."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    add_command(venv / "bin", "python", f"kill -{name} $PPID; exit 1")
    done = run(commands, ROOT / "run_local.sh", "catch", "vtrace", "1", "1", SEED_RL_VENV=venv)
    assert done.returncode == code, done.stdout
    assert (venv / "pyvenv.cfg").exists()
    assert "damaged" not in done.stdout
