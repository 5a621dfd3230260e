"""Options of the replay that can't work are refused at the start, in a line that says why."""

from __future__ import annotations

import dataclasses
import math

import pytest

from seed_rl.config import option
from seed_rl.optimizer_config import OptimizerConfig
from seed_rl.replay_config import ReplayConfig


@dataclasses.dataclass(frozen=True)
class Agent(OptimizerConfig, ReplayConfig):
    """As an agent has it."""

    batch_size: int = option(16, "Unrolls in a training batch.")

    def __post_init__(self) -> None:
        OptimizerConfig.__post_init__(self)
        ReplayConfig.__post_init__(self)
        self.check_batch_size(self.batch_size)


def test_the_defaults_fit() -> None:
    assert Agent().replay_buffer_size > Agent().replay_buffer_min_size


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"batch_size": 64, "replay_buffer_min_size": 63},
            ["--batch_size=64", "--replay_buffer_min_size=63"],
        ),
        (
            {"batch_size": 64, "replay_buffer_size": 50, "replay_buffer_min_size": 50},
            ["--batch_size=64", "--replay_buffer_size=50"],
        ),
        (
            {"replay_buffer_size": 99, "replay_buffer_min_size": 100},
            ["--replay_buffer_min_size=100", "--replay_buffer_size=99"],
        ),
    ],
)
def test_what_would_wait_for_ever_is_refused(options: dict[str, int], words: list[str]) -> None:
    """Case 85."""
    with pytest.raises(ValueError) as error:
        Agent(**options)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_what_just_suffices_is_accepted() -> None:
    """Case 85."""
    assert Agent(batch_size=64, replay_buffer_min_size=64, replay_buffer_size=64).batch_size == 64
    assert Agent(batch_size=1, replay_buffer_min_size=1, replay_buffer_size=1).batch_size == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("replay_buffer_size", 0),
        ("replay_buffer_min_size", 0),
        *(("replay_ratio", value) for value in (0.0, -1.0, math.nan, math.inf)),
        *(("priority_exponent", value) for value in (-0.1, 1.1, math.nan)),
        *(("importance_sampling_exponent", value) for value in (-0.1, 1.1, math.nan)),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"--{name} is {value}, wanted"):
        ReplayConfig(**{name: value})
