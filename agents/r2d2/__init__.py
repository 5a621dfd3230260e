"""R2D2: Q-learning with recurrent networks from prioritized, distributed replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seed_rl.agents.r2d2.config import R2d2Config as Config
from seed_rl.agents.r2d2.config import require_choice as require_fit
from seed_rl.agents.r2d2.presets import PRESETS
from seed_rl.specs import EnvironmentSpecs

if TYPE_CHECKING:  # it imports TensorFlow
    from seed_rl.agent import Agent

__all__ = ["PRESETS", "Config", "make", "require_fit"]


def make(config: Config, specs: EnvironmentSpecs, seed: int) -> Agent:
    """The agent for these specs, observations as the learner stacks them."""
    # Here, so that reading flags needs no TensorFlow.
    from seed_rl.agents.r2d2.agent import R2d2Agent

    return R2d2Agent(config, specs, seed)
