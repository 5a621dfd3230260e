"""The learner's options: defaults that fit together, and arithmetic in the refusals."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from seed_rl.config import LearnerConfig


def test_defaults_are_valid() -> None:
    """Case 42."""
    config = LearnerConfig()
    assert config.num_envs % config.env_batch_size == 0
    assert config.env_batch_size <= config.inference_capacity <= config.num_envs


@pytest.mark.parametrize(
    ("num_envs", "env_batch_size", "inference_batch_size", "wanted"),
    [
        # What runs, with the capacity of an inference batch.
        (1, 1, -1, 1),
        (32, 16, -1, 32),
        (32, 16, 16, 16),
        (32, 16, 17, 17),
        (32, 16, 32, 32),
        (32, 1, -1, 32),
        (32, 32, -1, 32),
        (1024, 16, -1, 512),
        (2048, 1024, -1, 1024),  # never less than one message
        # What is refused, with the arithmetic.
        (40, 16, -1, "2 actors would have 32 and leave 8 without an actor"),
        (8, 16, -1, "0 actors would have 0 and leave 8 without an actor"),
        (32, 16, 15, "--inference_batch_size=15 is less than --env_batch_size=16"),
        (32, 16, 33, "--inference_batch_size=33 is more than --num_envs=32"),
        (32, 16, 0, "--inference_batch_size is 0"),
        (32, 16, -2, "--inference_batch_size is -2"),
        (0, 16, -1, "--num_envs is 0"),
        (-16, 16, -1, "--num_envs is -16"),
        (32, 0, -1, "--env_batch_size is 0"),
    ],
)
def test_sizes(
    num_envs: int, env_batch_size: int, inference_batch_size: int, wanted: int | str
) -> None:
    """Case 24: each combination runs, or is refused with the arithmetic in the message."""

    def make() -> LearnerConfig:
        return LearnerConfig(
            num_envs=num_envs,
            env_batch_size=env_batch_size,
            inference_batch_size=inference_batch_size,
        )

    if isinstance(wanted, str):
        with pytest.raises(ValueError, match=re.escape(wanted)):
            make()
    else:
        assert make().inference_capacity == wanted


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        # What runs, with the capacity of an inference batch.
        ({"env_groups": 2}, 16),  # half of 2 actors' environments
        ({"env_groups": 2, "num_envs": 16}, 8),
        ({"env_groups": 16, "num_envs": 16}, 1),
        ({"env_groups": 2, "num_envs": 5, "env_batch_size": 5}, 3),  # the larger group
        ({"env_groups": 2, "num_envs": 10, "env_batch_size": 5}, 5),
        ({"env_groups": 2, "num_envs": 2048}, 512),
        ({"env_groups": 2, "inference_batch_size": 8}, 8),
        ({"env_groups": 2, "inference_batch_size": 32}, 32),
        # What is refused.
        ({"env_groups": 0}, "--env_groups is 0, wanted at least 1"),
        ({"env_groups": 17}, "--env_groups is 17, wanted at most 16"),
        (
            {"env_groups": 2, "inference_batch_size": 7},
            "--inference_batch_size=7 is less than --env_batch_size=16 / --env_groups=2",
        ),
    ],
)
def test_groups(options: dict[str, int], wanted: int | str) -> None:
    """Batches have room for the largest message, and don't wait for the groups that step."""
    if isinstance(wanted, str):
        with pytest.raises(ValueError, match=re.escape(wanted)):
            LearnerConfig(**options)
    else:
        assert LearnerConfig(**options).inference_capacity == wanted


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("total_environment_frames", 0),
        ("save_checkpoint_secs", 0.0),
        ("save_checkpoint_secs", math.nan),
        ("log_secs", -1.0),
        ("log_secs", math.nan),
        ("inference_timeout_ms", 0.0),
        ("inference_timeout_ms", math.inf),
        ("max_bad_updates", -1),
        ("seed", -1),
        ("seed", 2**31),
        ("intra_op_threads", -2),
        ("inter_op_threads", -2),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    """Case 42: each option says what it saw and what it wants."""
    with pytest.raises(ValueError, match=f"--{name}.*{re.escape(str(value))}.*wanted"):
        dataclasses.replace(LearnerConfig(), **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 0),
        ("seed", 2**31 - 1),
        ("save_checkpoint_secs", math.inf),
        ("intra_op_threads", 0),
        ("max_bad_updates", 5),
    ],
)
def test_a_value_at_the_edge_is_accepted(name: str, value: float) -> None:
    config = dataclasses.replace(LearnerConfig(), **{name: value})
    assert getattr(config, name) == value
