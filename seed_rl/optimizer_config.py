"""Options of the optimizer, a part of every agent's. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses

from seed_rl.config import option, require

# What computes is float32: less than its least normal number is 0 there, which is divided by.
_LEAST, _MOST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
_BELOW_1 = 1 - 2.0**-24


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """An agent's options derive from this and add its own."""

    optimizer: str = option("adam", "Which optimizer.", choices=("adam", "rmsprop"))
    learning_rate: float = option(6e-4, "Learning rate at the start.")
    learning_rate_decay: bool = option(
        True, "Lower the learning rate linearly, to 0 at total_environment_frames."
    )
    adam_beta_1: float = option(0.9, "Adam: decay of the mean of the gradients per update.")
    adam_epsilon: float = option(1e-5, "Adam: added to the root of the mean square.")
    rmsprop_epsilon: float = option(1e-2, "RMSProp: added to the mean square, under its root.")
    rmsprop_decay: float = option(0.99, "RMSProp: decay of the mean square per update.")
    clip_norm: float = option(1.0, "Largest global norm of the gradients. 0: no limit.")

    def __post_init__(self) -> None:
        self._require("optimizer", self.optimizer in ("adam", "rmsprop"), "adam or rmsprop")
        self._require_above_0("learning_rate")
        self._require_below_1("adam_beta_1")
        self._require_above_0("adam_epsilon")
        self._require_above_0("rmsprop_epsilon")
        self._require_below_1("rmsprop_decay")
        self._require_at_least_0("clip_norm")

    def _require(self, name: str, fits: bool, wanted: str) -> None:
        require(self, name, fits, wanted)

    def _require_below_1(self, name: str) -> None:
        value = getattr(self, name)
        self._require(name, 0 <= value <= _BELOW_1, "a number in [0, 1), in float32, too")

    def _require_above_0(self, name: str) -> None:
        value = getattr(self, name)
        self._require(
            name,
            _LEAST <= value <= _MOST,
            f"a number above 0, from {_LEAST:.2g} to {_MOST:.2g} since float32 holds no others",
        )

    def _require_at_least_0(self, name: str) -> None:
        value = getattr(self, name)
        self._require(
            name,
            value == 0 or _LEAST <= value <= _MOST,
            f"0, or a number from {_LEAST:.2g} to {_MOST:.2g} since float32 holds no others",
        )
