"""Adapter from vector environments, gymnasium's and envpool's, to `Environments`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from seed_rl.envs.gym.observations import ObservationReader, WarnOnce
from seed_rl.envs.gym.spaces import action_decoder, environment_specs
from seed_rl.envs.seeding import environment_seed
from seed_rl.specs import EnvironmentSpecs, Nest
from seed_rl.types import StepType, Transition

# Each look-up in an enum would cost as much as a copy does.
_FIRST, _MID, _TERMINATED, _TRUNCATED = (kind.value for kind in StepType)

# Makes a vector environment of as many environments as there are seeds.
MakeVector = Callable[[list[int]], Any]


def vector_specs_of(make_vector: MakeVector) -> EnvironmentSpecs:
    """The specs of one environment of a vector, which is made and closed for this."""
    vector = make_vector([0])
    try:
        return _specs_of(vector, 1)
    finally:
        if hasattr(vector, "close"):
            vector.close()


def _specs_of(vector: Any, n: int) -> EnvironmentSpecs:
    """Raises ValueError where it is no vector environment of n that resets as ours do."""
    if not hasattr(vector, "num_envs") or not hasattr(vector, "single_observation_space"):
        raise ValueError(
            f"saw {vector!r}, wanted a gymnasium.vector.VectorEnv; a function that makes single "
            "environments takes no num_envs"
        )
    if vector.num_envs != n:
        raise ValueError(f"saw num_envs={vector.num_envs} in {vector!r}, wanted {n}, as asked for")
    mode = vector.metadata.get("autoreset_mode")
    if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP.value):
        # Others show no terminal observation, or are a step ahead of what the actions are for.
        raise ValueError(
            f"{vector!r}: metadata['autoreset_mode'] is {mode}, wanted AutoresetMode.NEXT_STEP: "
            "make it with vector_kwargs={'autoreset_mode': 'NextStep'} of gymnasium.make_vec, or "
            "SyncVectorEnv(..., autoreset_mode='NextStep')"
        )
    return environment_specs(vector.single_observation_space, vector.single_action_space)


class VectorEnvironments:
    """A vector environment, which resets on the step after an episode's end, as ours do.

    Seeds: where `is_seeded`, `make_vector` has seeded what it made. Otherwise its first reset gets
    a seed for each environment, or, unless it is one of gymnasium's own, that of the first.
    """

    def __init__(
        self, make_vector: MakeVector, is_seeded: bool, env_ids: Sequence[int], seed: int
    ) -> None:
        seeds = [environment_seed(seed, i) for i in env_ids]
        self._seeds = None if is_seeded else seeds
        self._name = f"environments {env_ids[0]}..{env_ids[-1]}"
        self._vector = make_vector(seeds)
        self._is_closed = False
        try:
            self.specs = _specs_of(self._vector, len(seeds))
            if not is_seeded and _is_envpool(self._vector):
                raise ValueError(
                    "envpool takes no seeds after it was made: let the function take seeds, as in "
                    "make(num_envs, seeds), and pass them on as envpool.make(..., seed=seeds)"
                )
        except BaseException:
            self.close()
            raise
        self._reader = ObservationReader(
            self._vector.single_observation_space, self.specs.observation, env_ids, WarnOnce()
        )
        self._decode = action_decoder(self._vector.single_action_space)
        self._all_mid = np.full(len(seeds), _MID, np.uint8)
        # Whose episode ended at the last step, bool [n]: the next one resets them. None: nobody's.
        self._has_ended: np.ndarray | None = None

    def reset(self) -> Transition:
        options: dict[str, Any] = {}
        if self._seeds is not None:
            has_lists = isinstance(self._vector.unwrapped, SyncVectorEnv | AsyncVectorEnv)
            options["seed"] = self._seeds if has_lists else self._seeds[0]
            self._seeds = None  # later resets go on with the same random streams
        observation, _ = self._call("reset", **options)
        n = len(self._all_mid)
        self._has_ended = None
        return self._transition(np.full(n, _FIRST, np.uint8), np.zeros(n, np.float32), observation)

    def step(self, action: Nest) -> Transition:
        result = self._call("step", self._decode(action))
        observation, reward, terminated, truncated, _ = result
        terminated = self._column("terminated", terminated, bool)
        truncated = self._column("truncated", truncated, bool)
        reward = self._column("reward", reward, None).astype(np.float32)
        step_type, resets = self._all_mid.copy(), self._has_ended
        has_ended = terminated | truncated
        if has_ended.any():
            step_type[truncated] = _TRUNCATED
            step_type[terminated] = _TERMINATED
        if resets is not None:
            step_type[resets], reward[resets] = _FIRST, 0
            has_ended &= ~resets
        self._has_ended = has_ended if has_ended.any() else None
        return self._transition(step_type, reward, observation)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._vector.close()

    def _transition(
        self, step_type: np.ndarray, reward: np.ndarray, observation: Any
    ) -> Transition:
        observation = self._reader.read_batch(self._name, observation, len(reward))
        return Transition(step_type, reward, reward.copy(), observation)

    def _column(self, field: str, value: Any, dtype: Any) -> np.ndarray:
        column = np.asarray(value, dtype)
        if column.shape != self._all_mid.shape:
            raise ValueError(
                f"{self._name}: {field}: wanted an array {list(self._all_mid.shape)}, saw "
                f"{list(column.shape)}"
            )
        return column

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self._vector, method)(*arguments, **options)
        except Exception as error:
            raise RuntimeError(
                f"{self._name} failed in {method}(): {type(error).__name__}: {error}"
            ) from error


def _is_envpool(vector: Any) -> bool:
    return any(base.__module__.startswith("envpool.") for base in type(vector).__mro__)
