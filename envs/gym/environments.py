"""Adapter from single gymnasium, or older gym, environments to `Environments`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import optree

from seed_rl.envs.gym.spaces import action_decoder, environment_specs, leaf_spaces
from seed_rl.envs.seeding import environment_seed
from seed_rl.specs import ArraySpec, EnvironmentSpecs, Nest, flatten, map_nest, paths, unflatten
from seed_rl.types import StepType, Transition, is_last

_logger = logging.getLogger(__name__)


def specs_of(make_env: Callable[[], Any]) -> EnvironmentSpecs:
    """The specs of one environment, which is made and closed for this."""
    env = make_env()
    if not hasattr(env, "observation_space") or not hasattr(env, "action_space"):
        raise ValueError(f"saw {env!r} in place of an environment, wanted a gymnasium.Env")
    try:
        return environment_specs(env)
    finally:
        env.close()


class GymEnvironments:
    """Environments of gymnasium's API, or of gym's with 4 values a step, stepped one by one."""

    def __init__(self, make_env: Callable[[], Any], env_ids: Sequence[int], seed: int) -> None:
        self._env_ids = list(env_ids)
        self._seeds: list[int | None] = [environment_seed(seed, i) for i in self._env_ids]
        self._envs: list[Any] = []
        self._warnings: set[str] = set()
        try:
            for _ in self._env_ids:
                self._envs.append(make_env())
        except BaseException:
            self.close()
            raise
        self.specs = environment_specs(self._envs[0])
        self._leaves: list[ArraySpec] = flatten(self.specs.observation)
        self._spaces = leaf_spaces(self._envs[0].observation_space)
        self._paths: list[tuple[Any, ...]] = optree.tree_paths(self.specs.observation)
        self._fields = [f"observation/{path}".rstrip("/") for path in paths(self.specs.observation)]
        self._decode = action_decoder(self._envs[0].action_space)
        self._step_type = np.full(len(self._envs), StepType.TERMINATED, np.uint8)

    def reset(self) -> Transition:
        self._step_type[:] = StepType.TERMINATED
        return self.step(map_nest(lambda spec: spec.zeros(len(self._envs)), self.specs.action))

    def step(self, action: Nest) -> Transition:
        n = len(self._envs)
        # New arrays each time: the last transition is still its receiver's.
        columns = [leaf.zeros(n) for leaf in self._leaves]
        step_type = np.full(n, StepType.FIRST, np.uint8)
        rewards = np.zeros(n, np.float32)
        resets = is_last(self._step_type).tolist()
        for i in range(n):
            try:
                if resets[i]:
                    result = self._reset_one(i)
                else:
                    result = self._envs[i].step(self._decode(action, i))
            except Exception as error:
                raise RuntimeError(
                    f"environment {self._env_ids[i]} failed in {'reset' if resets[i] else 'step'}"
                    f"(): {type(error).__name__}: {error}"
                ) from error
            if resets[i]:
                observation = result[0] if self._has_info(result) else result
            else:
                observation, rewards[i], step_type[i] = self._read_step(i, result)
            for leaf, column in enumerate(columns):
                column[i] = self._read_leaf(i, leaf, observation)
        self._step_type = step_type
        observations = unflatten(self.specs.observation, columns)
        return Transition(step_type.copy(), rewards, rewards.copy(), observations)

    def close(self) -> None:
        while self._envs:
            self._envs.pop().close()

    def _reset_one(self, i: int) -> Any:
        """Resets an environment, seeded at its first reset; later its own generator goes on."""
        env, seed = self._envs[i], self._seeds[i]
        self._seeds[i] = None
        if seed is None:
            return env.reset()
        if isinstance(env, gymnasium.Env):
            return env.reset(seed=seed)
        if hasattr(env, "seed"):
            env.seed(seed)
            return env.reset()
        if "seed" in inspect.signature(env.reset).parameters:
            return env.reset(seed=seed)
        self._warn_once(
            "seed",
            f"environments of class {type(env).__name__} are not seeded: they have neither "
            "reset(seed=...) nor seed()",
        )
        return env.reset()

    def _has_info(self, result: Any) -> bool:
        """Whether reset() returned (observation, info), as it does since gym 0.26."""
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            return False
        # A pair may itself be the observation, unless another tuple is inside.
        return not isinstance(self.specs.observation, tuple) or isinstance(result[0], tuple)

    def _read_step(self, i: int, result: Any) -> tuple[Any, float, StepType]:
        """Observation, reward and step type of what step() returned."""
        if isinstance(result, tuple) and len(result) == 5:
            observation, reward, terminated, truncated, _ = result
        elif isinstance(result, tuple) and len(result) == 4:
            observation, reward, done, info = result
            truncated = done and info.get("TimeLimit.truncated", False)
            terminated = done and not truncated
        else:
            seen = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise ValueError(
                f"environment {self._env_ids[i]}: step() wanted to return (observation, reward, "
                f"terminated, truncated, info), saw {seen}"
            )
        if terminated:
            step_type = StepType.TERMINATED
        else:
            step_type = StepType.TRUNCATED if truncated else StepType.MID
        return observation, self._read_reward(i, reward), step_type

    def _read_reward(self, i: int, reward: Any) -> float:
        numbers = (float, int, np.floating, np.integer)
        if isinstance(reward, numbers) and not isinstance(reward, bool):
            return float(reward)
        value = np.asarray(reward)
        if value.size != 1 or value.dtype.kind not in "biuf":
            raise ValueError(
                f"environment {self._env_ids[i]}: reward: wanted a number, saw {reward!r}"
            )
        self._warn_once("reward", f"reward: turning {type(reward).__name__} into a number")
        return float(value.item())

    def _read_leaf(self, i: int, leaf: int, observation: Any) -> Any:
        """One array of an observation, of the shape and dtype of its spec."""
        spec, value = self._leaves[leaf], observation
        try:
            for key in self._paths[leaf]:
                value = value[key]
            if value.__class__ is np.ndarray and value.dtype == spec.dtype:
                array = value
            else:
                array = np.asarray(value)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(
                f"environment {self._env_ids[i]}: {self._fields[leaf]}: wanted {spec}, "
                f"saw {observation!r}"
            ) from error
        if array.shape == spec.shape:
            if array.dtype == spec.dtype:
                return array
            cast = _cast(array, spec.dtype)
            if cast is not None:
                if array.dtype != self._spaces[leaf].dtype:
                    self._warn_once(
                        self._fields[leaf],
                        f"{self._fields[leaf]}: turning {array.dtype} into {spec.dtype}; it is "
                        "quicker if step() and reset() return what observation_space says",
                    )
                return cast
        seen = f"{array.dtype.name}{list(array.shape)}"
        if array.size and array.dtype.kind in "biuf":
            seen += f" from {array.min()} to {array.max()}"
        raise ValueError(
            f"environment {self._env_ids[i]}: {self._fields[leaf]}: wanted {spec}, as "
            f"observation_space says, saw {seen}"
        )

    def _warn_once(self, subject: str, message: str) -> None:
        if subject not in self._warnings:
            self._warnings.add(subject)
            _logger.warning(message)


def _cast(array: np.ndarray, dtype: str) -> np.ndarray | None:
    """The numbers as `dtype`; None where integers would not keep their values."""
    if array.dtype.kind not in "biuf":
        return None
    with np.errstate(invalid="ignore"):
        cast = array.astype(dtype)
    return cast if cast.dtype.kind == "f" or np.array_equal(cast, array) else None
