"""Adapter from single gymnasium, or older gym, environments to `Environments`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from seed_rl.envs.gym.observations import ObservationReader, WarnOnce
from seed_rl.envs.gym.spaces import action_decoder, action_splitter, environment_specs
from seed_rl.envs.seeding import environment_seed
from seed_rl.specs import EnvironmentSpecs, Nest, map_nest
from seed_rl.types import StepType, Transition

# Each look-up in an enum would cost as much as a row's reward does.
_FIRST, _MID, _TERMINATED, _TRUNCATED = (kind.value for kind in StepType)


def specs_of(make_env: Callable[[], Any]) -> EnvironmentSpecs:
    """The specs of one environment, which is made and closed for this."""
    env = make_env()
    try:
        return _specs_of(env)
    finally:
        if hasattr(env, "close"):
            env.close()


def _specs_of(env: Any) -> EnvironmentSpecs:
    if hasattr(env, "num_envs"):
        raise ValueError(
            f"saw the vector environment {env!r}, wanted a single one: let the function take "
            "num_envs, as in make(num_envs), and make a vector of so many"
        )
    if not hasattr(env, "observation_space") or not hasattr(env, "action_space"):
        raise ValueError(f"saw {env!r} in place of an environment, wanted a gymnasium.Env")
    return environment_specs(env.observation_space, env.action_space)


class GymEnvironments:
    """Environments of gymnasium's API, or of gym's with 4 values a step, stepped one by one."""

    def __init__(self, make_env: Callable[[], Any], env_ids: Sequence[int], seed: int) -> None:
        self._env_ids = list(env_ids)
        self._names = [f"environment {i}" for i in self._env_ids]
        self._seeds: list[int | None] = [environment_seed(seed, i) for i in self._env_ids]
        self._envs: list[Any] = []
        self._warn_once = WarnOnce()
        try:
            for _ in self._env_ids:
                self._envs.append(make_env())
            self.specs = _specs_of(self._envs[0])
        except BaseException:
            self.close()
            raise
        env = self._envs[0]
        self._reader = ObservationReader(
            env.observation_space, self.specs.observation, self._env_ids, self._warn_once
        )
        self._decode = action_decoder(env.action_space)
        self._split = action_splitter(env.action_space)
        self._all_mid = bytes([_MID] * len(self._envs))
        self._kinds = bytes([_TERMINATED] * len(self._envs))  # of the last steps

    def reset(self) -> Transition:
        self._kinds = bytes([_TERMINATED] * len(self._envs))
        return self.step(map_nest(lambda spec: spec.zeros(len(self._envs)), self.specs.action))

    def step(self, action: Nest) -> Transition:
        # New arrays each time: the last transition is still its receiver's.
        columns = self._reader.columns(len(self._envs))
        kinds, rewards = bytearray(self._all_mid), [0.0] * len(self._envs)
        choices = self._split(self._decode(action))
        # What most environments return is read here: calls would cost more than that itself.
        column, (shape, dtypes) = columns[0], self._reader.only_leaf
        for i, (env, choice, kind) in enumerate(zip(self._envs, choices, self._kinds, strict=True)):
            has_ended = kind >= _TERMINATED
            try:
                result = self._reset_one(i) if has_ended else env.step(choice)
            except Exception as error:
                raise RuntimeError(
                    f"{self._names[i]} failed in {'reset' if has_ended else 'step'}(): "
                    f"{type(error).__name__}: {error}"
                ) from error
            if has_ended:
                observation = result[0] if self._has_info(result) else result
                kinds[i] = _FIRST
            elif result.__class__ is tuple and len(result) == 5:
                observation, reward, terminated, truncated, _ = result
                if isinstance(reward, float):  # np.float64 is one as well
                    rewards[i] = reward
                else:
                    rewards[i] = self._read_reward(self._names[i], reward)
                if terminated or truncated:
                    kinds[i] = _TERMINATED if terminated else _TRUNCATED
            else:
                observation, rewards[i], kinds[i] = self._read_old_step(self._names[i], result)
            if (
                observation.__class__ is np.ndarray
                and observation.shape == shape
                and observation.dtype in dtypes
            ):
                column[i] = observation
            else:
                self._reader.read_row(self._names[i], observation, columns, i)
        self._kinds = bytes(kinds)
        reward = np.array(rewards, np.float32)
        step_type = np.frombuffer(kinds, np.uint8)
        return Transition(step_type, reward, reward.copy(), self._reader.nest(columns))

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
        # Wrappers pass on whatever they are given.
        if "seed" in inspect.signature(getattr(env, "unwrapped", env).reset).parameters:
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

    def _read_old_step(self, name: str, result: Any) -> tuple[Any, float, int]:
        """Observation, reward and step type of what step() of the older gym returned."""
        if not isinstance(result, tuple) or len(result) != 4:
            seen = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise ValueError(
                f"{name}: step() wanted to return (observation, reward, terminated, truncated, "
                f"info), saw {seen}"
            )
        observation, reward, done, info = result
        kind = _MID
        if done:
            kind = _TRUNCATED if info.get("TimeLimit.truncated", False) else _TERMINATED
        return observation, self._read_reward(name, reward), kind

    def _read_reward(self, name: str, reward: Any) -> float:
        if isinstance(reward, float | int | np.floating | np.integer) and not isinstance(
            reward, bool
        ):
            return float(reward)
        value = np.asarray(reward)
        if value.size != 1 or value.dtype.kind not in "biuf":
            raise ValueError(f"{name}: reward: wanted a number, saw {reward!r}")
        self._warn_once("reward", f"reward: turning {type(reward).__name__} into a number")
        return float(value.item())
