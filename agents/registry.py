"""Finds an algorithm by its name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol, cast

from seed_rl.specs import EnvironmentSpecs

if TYPE_CHECKING:  # it imports TensorFlow
    from seed_rl.agent import Agent

_MODULES = {"vtrace": "seed_rl.agents.vtrace"}


class Algorithm(Protocol):
    """What the package of an algorithm offers."""

    Config: type[Any]  # a frozen dataclass of options, and an OptimizerConfig

    def make(self, config: Any, specs: EnvironmentSpecs, seed: int) -> Agent:
        """The agent for observations as the learner stacks them; `seed` fixes its first weights."""


def load(name: str) -> Algorithm:
    """The algorithm of this name. TensorFlow is first imported by its `make`."""
    if name not in _MODULES:
        known = ", ".join(sorted(_MODULES))
        raise ValueError(f"--agent={name}: no such agent; wanted one of: {known}")
    return cast(Algorithm, importlib.import_module(_MODULES[name]))
