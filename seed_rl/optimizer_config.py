"""Options of the optimizer, a part of every agent's. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses
import math

from seed_rl.config import option, require


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """An agent's options derive from this and add its own."""

    optimizer: str = option("adam", "Which optimizer.", choices=("adam", "rmsprop"))
    learning_rate: float = option(6e-4, "Learning rate at the start.")
    learning_rate_decay: bool = option(
        True, "Lower the learning rate linearly, to 0 at total_environment_frames."
    )
    adam_beta_1: float = option(0.9, "Adam: decay of the mean gradient per update.")
    adam_epsilon: float = option(1e-5, "Adam: added to the root of the mean square.")
    rmsprop_epsilon: float = option(1e-2, "RMSProp: added to the mean square, under its root.")
    rmsprop_decay: float = option(0.99, "RMSProp: decay of the mean square per update.")
    clip_norm: float = option(1.0, "Largest global norm of the gradients. 0: no limit.")

    def __post_init__(self) -> None:
        self._require("optimizer", self.optimizer in ("adam", "rmsprop"), "adam or rmsprop")
        self._require_above_0("learning_rate")
        self._require("adam_beta_1", 0 <= self.adam_beta_1 < 1, "a number in [0, 1)")
        self._require_above_0("adam_epsilon")
        self._require_above_0("rmsprop_epsilon")
        self._require("rmsprop_decay", 0 <= self.rmsprop_decay < 1, "a number in [0, 1)")
        self._require_at_least_0("clip_norm")

    def _require(self, name: str, fits: bool, wanted: str) -> None:
        require(self, name, fits, wanted)

    def _require_above_0(self, name: str) -> None:
        value = getattr(self, name)
        self._require(name, math.isfinite(value) and value > 0, "a number above 0")

    def _require_at_least_0(self, name: str) -> None:
        value = getattr(self, name)
        self._require(name, math.isfinite(value) and value >= 0, "a number of at least 0")
