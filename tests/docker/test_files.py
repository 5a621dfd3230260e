"""The Dockerfile, its locks and the compose file fit what they are made of."""

import ast
import functools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seed_rl import launcher

ROOT = pathlib.Path(__file__).parent.parent.parent
LOCKS = ROOT / "docker/locks"
TARGETS = ("atari", "dmlab", "football", "mujoco")
DEVICES = ("cpu", "gpu")
# What a target's environments are installed with.
EXTRAS = {"atari": "atari", "mujoco": "mujoco"}
BUILT_BY_THE_SCRIPT = {"gfootball"}


def stages() -> dict[str, list[tuple[str, str]]]:
    """Each stage's instructions with their words, FROM first, in the Dockerfile's order."""
    text = (ROOT / "docker/Dockerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    found: dict[str, list[tuple[str, str]]] = {"": []}
    stage = ""
    for line in filter(None, text.splitlines()):
        instruction, _, words = line.partition(" ")
        if instruction == "FROM":
            stage = words.split(" AS ")[1]
            found[stage] = []
        found[stage].append((instruction, words))
    return found


def instructions(kind: str) -> list[str]:
    return [words for stage in stages().values() for name, words in stage if name == kind]


def ancestry(stage: str) -> list[tuple[str, str]]:
    """The instructions that make the image of a stage, the base's first."""
    parent = stages()[stage][0][1].split()[0]
    return [*(ancestry(parent) if parent in stages() else []), *stages()[stage]]


def copied() -> list[str]:
    """What is copied from the checkout, for each device and target."""
    sources = []
    for words in instructions("COPY"):
        if not words.startswith("--from="):
            for device in DEVICES:
                sources += [word.replace("${DEVICE}", device) for word in words.split()[:-1]]
    return sorted(set(sources))


@pytest.mark.parametrize("source", copied())
def test_what_is_copied_is_there_and_not_ignored(source: str) -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = [line.removeprefix("!/") for line in lines if line.startswith("!/")]
    assert any(pathlib.PurePath(source).is_relative_to(path) for path in let_in)
    if "*" not in source:  # the user's wheel
        tracked = ["git", "ls-files", "--error-unmatch", source]
        assert (ROOT / source).exists()
        if (ROOT / ".git").exists():
            assert subprocess.run(tracked, cwd=ROOT, capture_output=True).returncode == 0


def test_nothing_else_is_sent_to_docker() -> None:
    """Case 13: no virtual environment, log or .git makes the build's context large."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = [line.removeprefix("!/") for line in lines if line.startswith("!/")]
    assert lines[1] == "*"
    for path in let_in:
        assert any(pathlib.PurePath(source).is_relative_to(path) for source in copied()), path


def test_what_runs_is_there() -> None:
    scripts = {word for words in instructions("RUN") for word in re.findall(r"scripts/\S+", words)}
    assert scripts == {"scripts/venv.sh", "scripts/install_football.sh"}
    for script in scripts:
        assert (ROOT / script).exists()
    functions = (ROOT / "scripts/venv.sh").read_text()
    for function in ("make_venv", "apt_get", "missing_packages"):
        assert any(function in words for words in instructions("RUN"))
        assert f"\n{function}() {{" in functions


@pytest.mark.parametrize("target", TARGETS)
def test_images(target: str) -> None:
    """No compiler is left in them, apt leaves no lists, and whoever runs them is not root."""
    made = ancestry(target)
    assert [words for name, words in made if name == "USER"] == ["1000"]
    assert ("ENTRYPOINT", '["python", "-m"]') in made
    for name, words in made:
        if name == "RUN" and "apt-get install" in words:
            assert words.endswith("rm -rf /var/lib/apt/lists/*") or "useradd" in words
            assert "rm -rf /var/lib/apt/lists/*" in words
            assert not re.search(r"g\+\+|-dev\b|python3-venv", words)
    stages_copied = [words.split()[0] for name, words in made if name == "COPY"]
    name, words = made[-1]
    assert (name, words.split()[:2]) == ("RUN", ["python", "-c"])  # it can import what it needs
    assert stages_copied == [f"--from={target}-packages", "--from=code"]


@functools.cache
def requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Those of setup.py: everyone's, and the extras'."""
    code = (
        "import json, setuptools, distutils.core\n"
        "made = distutils.core.run_setup('setup.py', stop_after='init')\n"
        "print(json.dumps([made.install_requires, made.extras_require]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "SEED_RL_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    common, extras = json.loads(done.stdout.splitlines()[-1])
    return common, extras


def football() -> list[str]:
    script = [ROOT / "scripts/install_football.sh", "--requirements"]
    return subprocess.run(
        script, capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()


def read_lock(name: str) -> dict[str, str]:
    """Each package's version, by its canonical name."""
    lines = (LOCKS / f"{name}.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    for pin in pins:
        assert re.fullmatch(r"==[0-9][0-9A-Za-z.+]*", str(pin.specifier)), pin
    names = [canonicalize_name(pin.name) for pin in pins]
    assert len(set(names)) == len(names)
    return {
        name: str(pin.specifier).removeprefix("==") for name, pin in zip(names, pins, strict=True)
    }


def require(pins: dict[str, str], wanted: list[str]) -> None:
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        if name not in BUILT_BY_THE_SCRIPT:
            assert requirement.specifier.contains(pins[name]), f"{requirement} is {pins[name]}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("target", TARGETS)
def test_locks_have_what_is_required(target: str, device: str) -> None:
    """After a change of requirements: docker/lock.sh."""
    common, extras = requirements()
    wanted = [*common, *extras.get(EXTRAS.get(target, ""), [])]
    if target == "football":
        wanted += football()
    if device == "gpu":
        wanted += extras["gpu"]
    pins = read_lock(f"{target}-{device}")
    require(pins, wanted)
    assert "seed-rl" not in pins
    assert not BUILT_BY_THE_SCRIPT & pins.keys()
    assert ("mujoco" in pins) == (target == "mujoco")
    assert any(name.startswith("nvidia-cudnn") for name in pins) == (device == "gpu")


def test_lock_of_the_build_has_what_is_required() -> None:
    # Python 3.10 has no tomllib.
    match = re.search(r"^requires = (\[.*\])$", (ROOT / "pyproject.toml").read_text(), re.M)
    assert match is not None
    require(read_lock("build"), ast.literal_eval(match[1]))


def test_there_are_no_other_locks() -> None:
    assert {path.stem for path in LOCKS.iterdir()} == {
        "build",
        *(f"{target}-{device}" for target in TARGETS for device in DEVICES),
    }


def test_what_compose_starts_is_what_the_launcher_takes() -> None:
    text = (ROOT / "docker/compose.yaml").read_text()
    match = re.search(r"seed_rl\.launcher (.*\n.*)\n", text)
    assert match is not None
    command = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", match[1])
    words = launcher.parse_words(shlex.split(command))
    assert (words.game, words.agent, words.num_actors, words.envs_per_actor) == (
        *("atari", "vtrace", 2, 16),
    )
    assert words.flags == ("--logdir=/logs/compose",)
