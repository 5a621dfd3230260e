#!/usr/bin/env python3
"""Trains Pong with A2C of stable-baselines3; prints how many agent steps it has trained on.

To be run by a Python that has stable-baselines3 and ale-py, and not seed_rl: bench_end_to_end.py
does so with `--peer=sb3 --peer_python=...`. Nature CNN, ALE's vector environment, 84x84 gray frames
stacked by 4, frame repeat 4: every agent step is trained on once.
"""

from __future__ import annotations

import argparse
from typing import Any

import ale_py
import gymnasium
import numpy as np
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv


class AleVecEnv(VecEnv):
    """ALE's C++ vector environment with the interface that stable-baselines3 asks for.

    ALE resets on the next step; what that step returns counts here as the first step of the new
    episode, which costs the peer nothing.
    """

    def __init__(self, rom: str, num_envs: int, num_threads: int) -> None:
        self._envs = ale_py.AtariVectorEnv(
            rom,
            num_envs,
            num_threads=num_threads,
            full_action_space=True,
            img_height=84,
            img_width=84,
            stack_num=4,
            frameskip=4,
            reward_clipping=True,
            use_fire_reset=False,
        )
        observation = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
        super().__init__(num_envs, observation, gymnasium.spaces.Discrete(18))
        self._no_info: list[dict[str, Any]] = [{} for _ in range(num_envs)]

    def reset(self) -> np.ndarray:
        return self._envs.reset(seed=0)[0]

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        observation, reward, terminated, truncated, _ = self._envs.step(self._actions)
        return observation, reward.astype(np.float32), terminated | truncated, self._no_info

    def close(self) -> None:
        self._envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class Report(BaseCallback):
    """Prints the steps so far, after each update."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        print(f"steps={self.num_timesteps}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_envs", type=int, default=32)
    parser.add_argument("--unroll_length", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2, help="Of torch and of the emulators.")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    envs = AleVecEnv("pong", arguments.num_envs, arguments.threads)
    model = A2C("CnnPolicy", envs, n_steps=arguments.unroll_length, device="cpu")
    model.learn(10**12, callback=Report())


if __name__ == "__main__":
    main()
