"""Finds an algorithm by its name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from seed_rl.specs import EnvironmentSpecs

if TYPE_CHECKING:  # it imports TensorFlow
    from seed_rl.agent import Agent

_MODULES = {"r2d2": "seed_rl.agents.r2d2", "vtrace": "seed_rl.agents.vtrace"}


class Algorithm(Protocol):
    """What the package of an algorithm offers.

    Where it can't learn in all environments, it also has `require_fit(specs: EnvironmentSpecs)`,
    which raises ValueError for those, and needs no TensorFlow.
    """

    Config: type[Any]  # a frozen dataclass of options, and an OptimizerConfig
    PRESETS: Mapping[str, Mapping[str, Any]]  # by name, other defaults of any flags

    def make(self, config: Any, specs: EnvironmentSpecs, seed: int) -> Agent:
        """The agent for observations as the learner stacks them; `seed` fixes its first weights."""


def preset(agent: str, name: str) -> Mapping[str, Any]:
    """The defaults that the agent has under this name; none for an empty one."""
    presets = load(agent).PRESETS
    if name and name not in presets:
        known = f"wanted one of: {', '.join(sorted(presets))}" if presets else "it has none"
        raise ValueError(f"--preset={name}: --agent={agent} has no such preset; {known}")
    return presets[name] if name else {}


def load(name: str) -> Algorithm:
    """The algorithm of this name. TensorFlow is first imported by its `make`."""
    if name not in _MODULES:
        known = ", ".join(sorted(_MODULES))
        raise ValueError(f"--agent={name}: no such agent; wanted one of: {known}")
    return cast(Algorithm, importlib.import_module(_MODULES[name]))
