"""Options of the network. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses

from seed_rl import factories
from seed_rl.config import option, require

_NETWORKS = ("auto", "shallow", "nature", "deep", "mlp")
_PRECISIONS = ("float32", "bfloat16")
_NORMALIZED = ("auto", "true", "false")


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """An agent's options derive from this and add its own."""

    network: str = option(
        "auto",
        "Torso of the network: auto, shallow, nature, deep, mlp, or one of yours, module:factory. "
        "auto: shallow for images, mlp for vectors.",
    )
    lstm_size: int = option(0, "Units of the LSTM between torso and heads. 0: none.")
    precision: str = option(
        "float32",
        "In which the torso computes. bfloat16 is quicker where the processor has it; weights and "
        "all else stay float32.",
        choices=_PRECISIONS,
    )
    normalize_observations: str = option(
        "auto",
        "Bring observations to mean 0 and deviation 1, by all that were trained on. auto: those "
        "whose spec has no finite bounds; true: all floats.",
        choices=_NORMALIZED,
    )

    def __post_init__(self) -> None:
        require(
            self,
            "network",
            self.network in _NETWORKS or factories.is_name(self.network),
            f"one of {', '.join(_NETWORKS)}, or 'module:factory'",
        )
        for name, choices in (("precision", _PRECISIONS), ("normalize_observations", _NORMALIZED)):
            require(self, name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
        require(self, "lstm_size", self.lstm_size >= 0, "an integer of at least 0")
