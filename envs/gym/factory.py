"""A user's own environments: --environment=module:factory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from seed_rl.envs.gym.environments import GymEnvironments, specs_of
from seed_rl.specs import EnvironmentSpecs


@dataclasses.dataclass(frozen=True)
class FactoryConfig:
    """No options: the factory decides everything."""


class FactoryFamily:
    """The family of the environments that `factory()` returns."""

    Config = FactoryConfig

    def __init__(self, name: str, factory: Callable[[], Any]) -> None:
        self._name = name
        self._factory = factory

    def specs(self, config: FactoryConfig) -> EnvironmentSpecs:
        return specs_of(self._factory)

    def make(self, config: FactoryConfig, env_ids: Sequence[int], seed: int) -> GymEnvironments:
        return GymEnvironments(self._factory, env_ids, seed)

    def describe(self, config: FactoryConfig) -> str:
        return f"environments of {self._name}"
