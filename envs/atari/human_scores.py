"""What the 57 Atari games score that agents are compared on, when people or chance play them.

Means over episodes that start with up to 30 no-ops and last 30 minutes at most, as published in
Wang et al. 2016, "Dueling Network Architectures for Deep Reinforcement Learning",
https://arxiv.org/abs/1511.06581, whose random scores are those of Mnih et al. 2015, "Human-level
control through deep reinforcement learning". Badia et al. 2020, "Agent57",
https://arxiv.org/abs/2003.13350, has the same but for chance at Video Pinball: 0.
"""

from __future__ import annotations

import csv
import functools
import pathlib
from collections.abc import Mapping

from seed_rl.envs.scores import ReferenceScores


@functools.cache
def human_scores() -> Mapping[str, ReferenceScores]:
    """The scores of the 57 games by the names of their ROMs."""
    path = pathlib.Path(__file__).with_suffix(".csv")
    with path.open(encoding="utf-8", newline="") as file:
        return {
            row["game"]: ReferenceScores(float(row["random"]), float(row["human"]))
            for row in csv.DictReader(file)
        }
