"""Options of prioritized replay, for agents that learn from it. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses

from seed_rl.config import option


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """The options of such an agent derive from this and add its own.

    They also call `check_batch_size`.
    """

    replay_buffer_size: int = option(
        5000,
        "Unrolls in the replay; a new one replaces the oldest. What they take is told at the "
        "start: the default some 3 GB for unrolls of 80 steps of 84x84 pixels.",
    )
    replay_buffer_min_size: int = option(
        100,
        "Train only when this many unrolls are in the replay. Few, so that a small machine soon "
        "learns; raise it where the first episodes say little of later ones.",
    )
    replay_ratio: float = option(
        2.0,
        "How often each step is trained on, on average. Inserting waits for training and training "
        "for inserting, so that it holds exactly. More learns more from a step of the "
        "environment and takes more time for it.",
    )
    priority_exponent: float = option(
        0.9, "Unrolls are drawn in proportion to their priority to this power. 0: all alike."
    )
    importance_sampling_exponent: float = option(
        0.6,
        "How far weights in the loss make up for drawing some unrolls more often than others: from "
        "0, not at all, to 1, wholly.",
    )
    save_replay: bool = option(
        False,
        "Save the replay with checkpoints, to resume with it. It is written as it comes, "
        "compressed, and takes at most twice as much of the disk as of memory, and a few percent "
        "of that where frames are plain, as in Pong.",
    )
    check_replay_memory: bool = option(
        True, "Refuse to start where the replay doesn't fit in memory."
    )

    def __post_init__(self) -> None:
        for name in ("replay_buffer_size", "replay_buffer_min_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}, wanted at least 1")
        if not 1e-6 <= self.replay_ratio <= 1e6:
            raise ValueError(f"--replay_ratio is {self.replay_ratio}, wanted 1e-6 to 1e6")
        for name in ("priority_exponent", "importance_sampling_exponent"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"--{name} is {getattr(self, name)}, wanted a number in [0, 1]")
        if self.replay_buffer_min_size > self.replay_buffer_size:
            raise ValueError(
                f"--replay_buffer_min_size={self.replay_buffer_min_size} is more than "
                f"--replay_buffer_size={self.replay_buffer_size}: it would never be reached"
            )

    def check_batch_size(self, batch_size: int) -> None:
        """Raises ValueError where a batch is larger than what it is drawn from."""
        for name, least in (
            ("replay_buffer_size", self.replay_buffer_size),
            ("replay_buffer_min_size", self.replay_buffer_min_size),
        ):
            if batch_size > least:
                raise ValueError(
                    f"--batch_size={batch_size} is more than --{name}={least}: the first batch "
                    "would be drawn from fewer unrolls than it has; raise the one or lower the "
                    "other"
                )
