"""build.sh and run.sh with a `docker` that writes down what it is asked; lock.sh."""

import os
import pathlib
import subprocess

import pytest

DOCKER = pathlib.Path(__file__).parent.parent.parent / "docker"
# Fails where $FAILS is among its first words, as `build`.
STUB = """#!/bin/sh
printf '%s\\n' "$*" >>"$CALLS"
case "$FAILS" in "$1" | "$1 $2") echo "Cannot $FAILS" >&2; exit 7 ;; esac
"""


class Shell:
    """Runs scripts in a folder of their own."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder / "a folder"
        self.folder.mkdir()
        self._calls = folder / "calls"
        (folder / "bin").mkdir()
        (folder / "bin/docker").write_text(STUB)
        (folder / "bin/docker").chmod(0o755)
        self._path = f"{folder}/bin:/usr/bin:/bin"

    def run(
        self, script: pathlib.Path, *words: str, fails: str = "", **variables: str
    ) -> tuple[int, str]:
        """Exit code and output."""
        done = subprocess.run(
            [script, *words],
            cwd=self.folder,
            env={"PATH": self._path, "CALLS": str(self._calls), "FAILS": fails, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout

    def calls(self) -> list[str]:
        """All but the questions whether there is an engine behind the client."""
        calls = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [call for call in calls if not call.startswith("version --format ")]


@pytest.fixture
def shell(tmp_path: pathlib.Path) -> Shell:
    return Shell(tmp_path)


def built(target: str, device: str, tag: str, root: pathlib.Path = DOCKER.parent) -> str:
    return (
        f"build --file {root}/docker/Dockerfile --target {target} "
        f"--build-arg DEVICE={device} --tag {tag} {root}"
    )


def test_build(shell: Shell) -> None:
    code, said = shell.run(DOCKER / "build.sh", "atari")
    assert (code, said) == (0, "seed_rl: built seed_rl:atari-cpu\n")
    assert shell.calls() == [built("atari", "cpu", "seed_rl:atari-cpu")]


def test_build_and_push(shell: Shell) -> None:
    tag = "registry.example/mine/football:1"
    code, said = shell.run(DOCKER / "build.sh", "--push", f"--tag={tag}", "football", "gpu")
    assert (code, said) == (0, f"seed_rl: built and pushed {tag}\n")
    assert shell.calls() == [built("football", "gpu", tag), f"push {tag}"]


@pytest.mark.parametrize(("step", "num_calls"), [("build", 1), ("push", 2)])
def test_build_that_fails(shell: Shell, step: str, num_calls: int) -> None:
    """Nothing is pushed that was not built; either is one line and not code 0."""
    code, said = shell.run(DOCKER / "build.sh", "mujoco", "--tag=a/b", "--push", fails=step)
    assert code == 1
    cause, line = said.splitlines()
    assert cause == f"Cannot {step}"
    assert line.startswith(f"seed_rl: docker {step} ")
    assert len(shell.calls()) == num_calls


@pytest.mark.parametrize("words", [["build.sh", "atari"], ["run.sh", "atari", "vtrace", "2"]])
def test_client_without_an_engine(shell: Shell, words: list[str]) -> None:
    """Case 13: the one line is the client's, which says what is wrong."""
    code, said = shell.run(DOCKER / words[0], *words[1:], fails="version")
    assert (code, said) == (1, "seed_rl: docker: Cannot version\n")
    assert shell.calls() == []
    assert not list(shell.folder.iterdir())


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], "no target"),
        (["pong"], "saw target pong, wanted one of: atari dmlab football mujoco"),
        (["atari", "tpu"], "saw device tpu, wanted cpu or gpu"),
        (["atari", "gpu", "cpu"], "saw cpu after atari gpu"),
        (["atari", "--no-cache"], "saw --no-cache, wanted --tag=IMAGE or --push"),
        (["atari", "--tag="], "saw --tag=, wanted --tag=IMAGE or --push"),
        (["atari", "--push"], "--push needs --tag=IMAGE, which names the registry"),
    ],
)
def test_build_of_what_is_not_there(shell: Shell, words: list[str], wanted: str) -> None:
    code, said = shell.run(DOCKER / "build.sh", *words)
    assert code == 2
    assert said.splitlines() == [
        f"seed_rl: {wanted}",
        "usage: docker/build.sh atari|dmlab|football|mujoco [cpu|gpu] [--tag=IMAGE] [--push]",
    ]
    assert shell.calls() == []


@pytest.mark.parametrize("num_wheels", [0, 1, 2])
def test_dmlab_takes_the_one_wheel_of_the_user(
    shell: Shell, checkout: pathlib.Path, num_wheels: int
) -> None:
    for path in (checkout / "docker/wheels").glob("*.whl"):
        path.unlink()
    for number in range(num_wheels):
        (checkout / f"docker/wheels/DeepMind_Lab-1.{number}-py3-none-any.whl").touch()
    code, said = shell.run(checkout / "docker/build.sh", "dmlab")
    if num_wheels == 1:
        assert code == 0, said
        assert shell.calls() == [built("dmlab", "cpu", "seed_rl:dmlab-cpu", checkout)]
    else:
        assert code == 1
        assert said.startswith(f"seed_rl: found {num_wheels} wheels in docker/wheels; put your own")
        assert len(said.splitlines()) == 1
        assert shell.calls() == []


def ran(shell: Shell, image: str, words: str, gpus: str = "", mounts: str = "") -> str:
    mounts = mounts or f"--volume {shell.folder}/logs:{shell.folder}/logs"
    place = f"--workdir {shell.folder} {mounts}"
    quoted = place.replace("a folder", "a\\ folder").replace("a b", "a\\ b")
    return (
        f"run --rm --init --user {os.getuid()}:{os.getgid()} --shm-size=1g{gpus} {place} "
        f"--env SEED_RL_TENSORBOARD=docker run --rm --init --publish 127.0.0.1:6006:6006 {quoted} "
        f"{image} tensorboard.main --host 0.0.0.0 {image} seed_rl.launcher {words}"
    )


@pytest.mark.parametrize(
    ("game", "target"),
    [
        *((name, name) for name in ("atari", "dmlab", "football", "mujoco")),
        *(("gym", "mujoco"), ("catch", "atari"), ("recall", "atari")),
    ],
)
def test_run(shell: Shell, game: str, target: str) -> None:
    """The logs' folder is there before, and so is not made by Docker for root."""
    code, said = shell.run(DOCKER / "run.sh", game, "r2d2", "2", "16", "--seed=1", "--x", "-1")
    assert (code, said) == (0, "")
    image = f"seed_rl:{target}-cpu"
    words = f"{game} r2d2 2 16 --seed=1 --x -1"
    assert shell.calls() == [f"image inspect {image}", ran(shell, image, words)]
    assert (shell.folder / "logs").is_dir()


def test_run_builds_what_is_missing(shell: Shell) -> None:
    words = ["atari", "vtrace", "2"]
    code, said = shell.run(DOCKER / "run.sh", "--gpu", *words, fails="image inspect")
    assert code == 0
    assert said.startswith("seed_rl: building the image seed_rl:atari-gpu; ")
    assert shell.calls() == [
        "image inspect seed_rl:atari-gpu",
        built("atari", "gpu", "seed_rl:atari-gpu"),
        ran(shell, "seed_rl:atari-gpu", "atari vtrace 2", gpus=" --gpus all"),
    ]


def test_run_without_the_wheel_of_dmlab(shell: Shell, checkout: pathlib.Path) -> None:
    """What fails is said once, and nothing is run."""
    for path in (checkout / "docker/wheels").glob("*.whl"):
        path.unlink()
    words = ["dmlab", "vtrace", "2"]
    code, said = shell.run(checkout / "docker/run.sh", *words, fails="image inspect")
    assert code == 1
    assert said.splitlines()[-1].startswith("seed_rl: found 0 wheels in docker/wheels")
    assert shell.calls() == ["image inspect seed_rl:dmlab-cpu"]


def test_exit_code_of_the_container_is_that_of_run(shell: Shell) -> None:
    assert shell.run(DOCKER / "run.sh", "catch", "vtrace", "2", fails="run") == (7, "Cannot run\n")


def test_image_of_the_user_is_neither_looked_for_nor_built(shell: Shell) -> None:
    code, _ = shell.run(DOCKER / "run.sh", "atari", "vtrace", "2", SEED_RL_IMAGE="a/b:1")
    assert code == 0
    assert shell.calls() == [ran(shell, "a/b:1", "atari vtrace 2")]


@pytest.mark.parametrize("words", [["--logdir=runs/a b"], ["--logdir", "runs/a b"]])
def test_logdir_is_the_same_folder_inside_and_outside(shell: Shell, words: list[str]) -> None:
    code, said = shell.run(DOCKER / "run.sh", "atari", "vtrace", "2", *words, "--seed=1")
    assert code == 0, said
    logdir = shell.folder / "runs/a b"
    assert logdir.is_dir()
    mounts = f"--volume {shell.folder}/logs:{shell.folder}/logs --volume {logdir}:{logdir}"
    expected = f"atari vtrace 2 --logdir={logdir} --seed=1"
    assert shell.calls()[1] == ran(shell, "seed_rl:atari-cpu", expected, mounts=mounts)


def test_logdir_in_a_bucket_is_passed_on(shell: Shell) -> None:
    words = "atari vtrace 2 --logdir=gs://bucket/run"
    assert shell.run(DOCKER / "run.sh", *words.split())[0] == 0
    assert shell.calls()[1] == ran(shell, "seed_rl:atari-cpu", words)


def test_environment_of_the_user_is_found_in_their_folder(shell: Shell) -> None:
    words = "my_game:make vtrace 2 16"
    assert shell.run(DOCKER / "run.sh", *words.split())[0] == 0
    mounts = f"--volume {shell.folder}:{shell.folder}"
    assert shell.calls()[1] == ran(shell, "seed_rl:atari-cpu", words, mounts=mounts)

    (shell.folder / "seed_rl").mkdir()
    (shell.folder / "seed_rl/__init__.py").touch()
    code, said = shell.run(DOCKER / "run.sh", *words.split())
    assert code == 1
    assert "which hides the image's; start from the folder of my_game" in said
    assert len(shell.calls()) == 2


@pytest.mark.parametrize("words", ["", "atari vtrace", "atari vtrace 2 16 3", "atari --seed=1"])
def test_run_of_what_can_not_be_meant(shell: Shell, words: str) -> None:
    code, said = shell.run(DOCKER / "run.sh", *words.split())
    assert code == 2
    assert said.splitlines()[-1].startswith("usage: docker/run.sh [--gpu] GAME AGENT NUM_ACTORS")
    assert shell.calls() == []


def test_locks_that_are_not_there(shell: Shell) -> None:
    for name in ("atari", "pong-cpu", "-cpu", "builds"):
        code, said = shell.run(DOCKER / "lock.sh", "build", name)
        assert code == 2
        assert said.startswith(f"seed_rl: saw {name}, wanted build, or one of atari dmlab football")


def test_locks_for_another_python_are_not_made(shell: Shell) -> None:
    """The packages that it would choose could not be installed into the images."""
    old = shell.folder / "python"
    old.write_text("#!/bin/sh\n[ $1 = --version ] && echo Python 3.12.1; exit 1\n")
    old.chmod(0o755)
    code, said = shell.run(DOCKER / "lock.sh", PYTHON=str(old))
    assert code == 1
    assert said.splitlines()[-1] == (
        "seed_rl: the images have Python 3.11; let PYTHON name one, saw Python 3.12.1"
    )
