"""Environments for whole trainings in tests, with actions and observations of every kind."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

LENGTH = 8  # steps of an episode


class _Small(gymnasium.Env[Any, Any]):
    """Episodes of a fixed length, of observations drawn at random."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.time = 0
        return self.observe(), {}

    def observe(self) -> Any:
        self.seen = self.observation_space.sample()
        return self.seen

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"saw action {action!r}, wanted one of {self.action_space}")
        reward = self.judge(action)
        self.time += 1
        return self.observe(), reward, self.time == LENGTH, False, {}

    def judge(self, action: Any) -> float:
        return 0.0


class Buttons(_Small):
    """Several choices; a copy of what is seen is wanted."""

    observation_space = MultiDiscrete([2, 4, 3])
    action_space = MultiDiscrete([2, 4, 3])

    def judge(self, action: Any) -> float:
        return float(np.mean(action == self.seen))


class Everything(_Small):
    observation_space = Dict(
        {
            "camera": Box(0, 255, (36, 36), np.uint8),
            "dice": Tuple([Discrete(6, start=1), MultiBinary(3)]),
            "pose": Box(-np.inf, np.inf, (3,), np.float32),
        }
    )
    action_space = Dict(
        {
            "aim": Box(-1, 1, (2,), np.float32),
            "gear": Discrete(3),
            "rest": Tuple([MultiBinary(2), Box(-1, 1, (), np.float32)]),
        }
    )


class Target(_Small):
    """A number from -3 to 5 to be hit; the distance costs."""

    observation_space = Box(-3, 5, (1,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def judge(self, action: Any) -> float:
        return 1 - float(np.abs(1 + 4 * action - self.seen).item()) / 4


class Masked(_Small):
    """Only some of 5 actions can be taken, and pay what they are seen to; others are an error."""

    observation_space = Dict({"action_mask": MultiBinary(5), "prices": Box(0, 1, (5,), np.float32)})
    action_space = Discrete(5)

    def observe(self) -> Any:
        super().observe()
        if self.time == LENGTH:
            self.seen["action_mask"][:] = 0  # nothing is left to do
        elif not self.seen["action_mask"].any():
            self.seen["action_mask"][self.np_random.integers(5)] = 1
        return self.seen

    def judge(self, action: Any) -> float:
        if not self.seen["action_mask"][action]:
            raise ValueError(f"action {action} is masked: {self.seen['action_mask']}")
        return float(self.seen["prices"][action])
