"""A user's own environments: --environment=module:factory."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from seed_rl.envs.environment import Environments
from seed_rl.envs.gym.environments import GymEnvironments, specs_of
from seed_rl.envs.gym.vector import VectorEnvironments, vector_specs_of
from seed_rl.specs import EnvironmentSpecs


@dataclasses.dataclass(frozen=True)
class FactoryConfig:
    """No options: the factory decides everything."""


class FactoryFamily:
    """The family of the environments that a function makes.

    `factory()` makes one environment. A factory with a parameter called num_envs makes a vector of
    so many, and may have one called seeds, which is a list of int, one for each of them.
    """

    Config = FactoryConfig

    def __init__(self, name: str, factory: Callable[..., Any]) -> None:
        self._name = name
        self._factory = factory
        try:
            parameters = set(inspect.signature(factory).parameters)
        except ValueError:  # of some classes in C
            parameters = set()
        self._makes_vectors = "num_envs" in parameters
        self._takes_seeds = "seeds" in parameters

    def specs(self, config: FactoryConfig) -> EnvironmentSpecs:
        return vector_specs_of(self._vector) if self._makes_vectors else specs_of(self._factory)

    def make(self, config: FactoryConfig, env_ids: Sequence[int], seed: int) -> Environments:
        if self._makes_vectors:
            return VectorEnvironments(self._vector, self._takes_seeds, env_ids, seed)
        return GymEnvironments(self._factory, env_ids, seed)

    def describe(self, config: FactoryConfig) -> str:
        return f"environments of {self._name}"

    def _vector(self, seeds: list[int]) -> Any:
        if self._takes_seeds:
            return self._factory(num_envs=len(seeds), seeds=seeds)
        return self._factory(num_envs=len(seeds))
