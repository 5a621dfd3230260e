"""Options of the network. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses

from seed_rl.config import option, require

_NETWORKS = ("auto", "shallow", "nature", "deep", "mlp")
_PRECISIONS = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """An agent's options derive from this and add its own."""

    network: str = option(
        "auto",
        "Torso of the network. auto: shallow for images, mlp for vectors.",
        choices=_NETWORKS,
    )
    lstm_size: int = option(0, "Units of the LSTM between torso and heads. 0: none.")
    precision: str = option(
        "float32",
        "In which the torso computes. bfloat16 is quicker where the processor has it; weights and "
        "all else stay float32.",
        choices=_PRECISIONS,
    )

    def __post_init__(self) -> None:
        for name, choices in (("network", _NETWORKS), ("precision", _PRECISIONS)):
            require(self, name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
        require(self, "lstm_size", self.lstm_size >= 0, "an integer of at least 0")
