"""V-trace, the actor-critic of IMPALA: off-policy corrected policy gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seed_rl.agents.vtrace.config import VtraceConfig as Config
from seed_rl.agents.vtrace.presets import PRESETS
from seed_rl.specs import EnvironmentSpecs

if TYPE_CHECKING:  # it imports TensorFlow
    from seed_rl.agent import Agent

__all__ = ["PRESETS", "Config", "make"]


def make(config: Config, specs: EnvironmentSpecs, seed: int) -> Agent:
    """The agent for these specs, observations as the learner stacks them."""
    # Here, so that reading flags needs no TensorFlow.
    from seed_rl.agents.vtrace.agent import VtraceAgent

    return VtraceAgent(config, specs, seed)
