"""Flags made of dataclasses, and dataclasses made of flags."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from seed_rl import flags
from seed_rl.config import LearnerConfig, option
from seed_rl.errors import UserError


@dataclasses.dataclass(frozen=True)
class Kinds:
    """One option of every kind."""

    truth: bool = option(True, "A bool.")
    count: int = option(3, "An int.")
    share: float = option(0.5, "A float.")
    name: str = option("pong", "A str.")
    maybe: str | None = option(None, "A str that may be absent.")
    perhaps: int | None = option(None, "An int that may be absent.")
    colour: str = option("red", "A choice.", choices=("red", "green"))


@dataclasses.dataclass(frozen=True)
class Other:
    """A second group."""

    size: int = option(1, "A size.")

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"--size is {self.size}, wanted at least 1")


def as_flags(config: object) -> list[str]:
    values = dataclasses.asdict(config)  # type: ignore[call-overload]
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def test_defaults() -> None:
    assert flags.parse([], Kinds, Other) == (Kinds(), Other())


@pytest.mark.parametrize(
    "config",
    [
        Kinds(),
        Kinds(False, -7, 1e-30, "", "x=y z", 0, "green"),
        Kinds(name="--count=9", maybe="", share=float("inf")),
    ],
)
def test_every_value_survives_the_command_line(config: Kinds) -> None:
    assert flags.parse(as_flags(config), Kinds) == (config,)


def test_learner_config_survives_the_command_line() -> None:
    config = LearnerConfig(
        logdir="some where", num_envs=8, env_batch_size=2, seed=7, token="secret", log_secs=0.25
    )
    assert flags.parse(as_flags(config), LearnerConfig) == (config,)


def test_forms_of_flags() -> None:
    argv = ["--count", "4", "-name=a", "--notruth", "--colour", "green"]
    assert flags.parse(argv, Kinds) == (Kinds(False, 4, name="a", colour="green"),)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--coun=4"], "'coun'.*count"),  # and the flag that was probably meant
        (["--count=four"], "--count.*four"),
        (["--count=1.5"], "--count.*1.5"),
        (["--share=half"], "--share.*half"),
        (["--truth=perhaps"], "--truth.*perhaps"),
        (["--colour=blue"], r"--colour.*blue.*red|green"),
        (["--count"], "count"),
        (["--size=0"], "--size is 0, wanted at least 1"),
        (["pong"], "wanted only --flags, saw 'pong'"),
        (["--count=1", "pong", "--count=2", "atari"], "saw 'pong atari'"),
        (["--", "--count=2"], "saw '--count=2'"),
    ],
)
def test_mistakes_are_named(argv: list[str], words: str) -> None:
    with pytest.raises(UserError, match=f"(?s){words}"):
        flags.parse(argv, Kinds, Other)


@pytest.mark.parametrize(
    "argv",
    [
        ["--unheard", "4", "--size=3"],
        ["--unheard=4", "--size", "3"],
        ["--size=3", "word", "--nounheard"],
        ["word", "--size=3"],
    ],
)
def test_known_only_reads_past_what_it_does_not_know(argv: list[str]) -> None:
    """Or else a flag behind an unknown one would silently keep its default."""
    assert flags.parse(argv, Other, known_only=True) == (Other(3),)


def test_two_groups_must_not_share_a_name() -> None:
    with pytest.raises(ValueError, match=r"--truth of Kinds exists already"):
        flags.parse([], Kinds, Kinds)


def test_usage_shows_every_flag_and_its_default() -> None:
    text = flags.usage(Kinds, Other)
    for words in ("One option of every kind.", "A second group.", "--count=3", "(red|green)"):
        assert words in text
    for field in dataclasses.fields(Kinds):
        assert f"--{field.name}=" in text
        assert field.metadata["help"] in text


def test_nothing_is_defined_globally() -> None:
    """Two programs' flags live in one process; and reading flags needs no TensorFlow."""
    program = (
        "import sys; from absl import flags as global_flags; before = set(global_flags.FLAGS);"
        "from seed_rl import flags; from seed_rl.config import LearnerConfig;"
        "flags.parse(['--num_envs=32'], LearnerConfig);"
        "flags.parse(['--num_envs=48'], LearnerConfig);"
        "assert set(global_flags.FLAGS) == before; assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
