"""Configuration: frozen dataclasses whose fields are the flags."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from seed_rl.grpc import core as cores

# Beyond this, larger batches no longer make a row cheaper on the devices that we know.
_LARGEST_AUTOMATIC_BATCH = 512


def option(default: Any, help: str, choices: Sequence[str] | None = None) -> Any:
    """A dataclass field that is also a flag of the same name. `None` as default makes it optional.

    Its type is read from the annotation: bool, int, float, str or `str | None`, `int | None`, ...
    """
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices})


def require(config: Any, name: str, fits: bool, wanted: str) -> None:
    """Raises ValueError unless the option `name` of a dataclass `fits` what is `wanted`."""
    if not fits:
        value, default = getattr(config, name), type(config).__dataclass_fields__[name].default
        raise ValueError(f"--{name}={value}: wanted {wanted}; the default is {default}")


def require_seed(seed: int) -> None:
    """Raises ValueError unless `seed` fits what TensorFlow and environments take for one."""
    if not 0 <= seed < 2**31:
        raise ValueError(f"--seed is {seed}, wanted 0 to {2**31 - 1}")


def require_groups(env_groups: int, env_batch_size: int) -> None:
    """Raises ValueError where an actor would have groups without environments."""
    if env_groups > env_batch_size:
        raise ValueError(
            f"--env_groups is {env_groups}, wanted at most {env_batch_size}, the environments of "
            "one actor"
        )


@dataclasses.dataclass(frozen=True)
class PresetConfig:
    """Which set of defaults."""

    preset: str = option(
        "",
        "Defaults by name, those of a paper, made for many machines: paper of r2d2, paper_dmlab "
        "and paper_football of vtrace. Other flags come before them.",
    )


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
    """Learner: where it is, how many environments it serves, how long it trains."""

    logdir: str = option("", "Folder of the run: config, checkpoints, TensorBoard files. Needed.")
    server_address: str = option(
        "localhost:8686",
        "Where the learner serves actors: host:port, [ipv6]:port or unix:path. "
        "0.0.0.0:8686 serves other machines.",
    )
    num_envs: int = option(32, "Environments of all actors together.")
    env_batch_size: int = option(16, "Environments of one actor.")
    env_groups: int = option(
        1,
        "Groups of each actor's environments: one steps while the others wait for their actions. "
        "Automatic inference batches then take one group of each actor.",
    )
    num_eval_envs: int = option(
        0,
        "How many of num_envs only show what has been learned: the last ones. Nothing of them is "
        "trained on, and their returns are reported apart.",
    )
    inference_batch_size: int = option(
        -1, "Most environments answered by one call of the network; -1 = automatic."
    )
    inference_timeout_ms: float = option(
        20.0,
        "A batch is inferred at the latest this long after its first row, however many "
        "environments are missing from it.",
    )
    total_environment_frames: int = option(
        40_000_000, "Train on this many frames, repeated actions counted."
    )
    save_checkpoint_secs: float = option(600.0, "Seconds between checkpoints.")
    init_checkpoint: str = option(
        "", "Start a new run from the weights of this checkpoint, logdir/checkpoints/ckpt-N."
    )
    seed: int = option(0, "Seed of environments, weights and sampled actions.")
    max_bad_updates: int = option(
        0,
        "Skip up to this many updates in a row whose loss or gradient is not finite. If above 0, "
        "unrolls that are not finite are left out of a replay.",
    )
    log_secs: float = option(10.0, "Seconds between status lines and TensorBoard points.")
    token: str = option("", "Secret that actors must show; empty = none is asked for.")
    core: str = option("auto", cores.HELP, cores.CHOICES)
    intra_op_threads: int = option(
        -1, "TensorFlow threads within an operation; -1 = automatic for this machine."
    )
    inter_op_threads: int = option(
        -1, "TensorFlow threads between operations; -1 = automatic for this machine."
    )

    def __post_init__(self) -> None:
        for name in ("num_envs", "env_batch_size", "env_groups", "total_environment_frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}, wanted at least 1")
        for name in ("save_checkpoint_secs", "log_secs", "inference_timeout_ms"):
            if not getattr(self, name) > 0:
                raise ValueError(f"--{name} is {getattr(self, name)}, wanted more than 0")
        if math.isinf(self.inference_timeout_ms):
            raise ValueError("--inference_timeout_ms is inf, wanted a finite number")
        for name, least in (
            ("max_bad_updates", 0),
            ("num_eval_envs", 0),
            ("intra_op_threads", -1),
            ("inter_op_threads", -1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"--{name} is {getattr(self, name)}, wanted at least {least}")
        require_seed(self.seed)
        if self.num_envs % self.env_batch_size:
            raise ValueError(
                f"--num_envs={self.num_envs} is not a multiple of "
                f"--env_batch_size={self.env_batch_size}: {self.num_envs // self.env_batch_size} "
                f"actors would have {self.num_envs // self.env_batch_size * self.env_batch_size} "
                f"and leave {self.num_envs % self.env_batch_size} without an actor"
            )
        if self.num_eval_envs >= self.num_envs:
            raise ValueError(
                f"--num_eval_envs={self.num_eval_envs} of --num_envs={self.num_envs} leaves none "
                "to train on"
            )
        if self.inference_batch_size == 0 or self.inference_batch_size < -1:
            raise ValueError(
                f"--inference_batch_size is {self.inference_batch_size}, wanted -1 or at least 1"
            )
        require_groups(self.env_groups, self.env_batch_size)
        if 0 < self.inference_batch_size < self._largest_group:
            groups = f" / --env_groups={self.env_groups}" if self.env_groups > 1 else ""
            raise ValueError(
                f"--inference_batch_size={self.inference_batch_size} is less than "
                f"--env_batch_size={self.env_batch_size}{groups}: the rows of one actor's message "
                "are inferred together"
            )
        if self.inference_batch_size > self.num_envs:
            raise ValueError(
                f"--inference_batch_size={self.inference_batch_size} is more than "
                f"--num_envs={self.num_envs}: such a batch would never fill"
            )

    @property
    def inference_capacity(self) -> int:
        """Rows of the largest inference batch."""
        if self.inference_batch_size > 0:
            return self.inference_batch_size
        # One that had to wait for all groups would leave none to step meanwhile.
        rows = math.ceil(self.num_envs / self.env_groups)
        return max(self._largest_group, min(rows, _LARGEST_AUTOMATIC_BATCH))

    @property
    def _largest_group(self) -> int:
        return math.ceil(self.env_batch_size / self.env_groups)
