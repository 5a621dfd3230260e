#!/usr/bin/env python3
"""Measures A2C of stable-baselines3 on ALE's vector environment; prints one line of JSON.

To be run by a Python that has stable-baselines3, ale-py and psutil, and not seed_rl:
bench_end_to_end.py does so with `--peer=sb3 --peer_python=...`. A2C, Nature CNN, 84x84 gray frames
stacked by 4, frame repeat 4: every agent step is trained on once.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import ale_py
import gymnasium
import numpy as np
import psutil
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


class Window(BaseCallback):
    """Counts steps and CPU seconds after the warm-up, and ends the training."""

    def __init__(self, warmup_secs: float, seconds: float) -> None:
        super().__init__()
        self._warmup_secs, self._seconds = warmup_secs, seconds
        self.start: tuple[float, float, int] | None = None
        self.result: dict[str, float] = {}

    def _on_training_start(self) -> None:
        self._began = time.perf_counter()

    def _on_step(self) -> bool:
        return not self.result

    def _on_rollout_start(self) -> None:
        now = time.perf_counter(), time.process_time(), self.num_timesteps
        if self.start is None:
            if now[0] - self._began > self._warmup_secs:
                self.start = now
        elif now[0] - self.start[0] > self._seconds:
            seconds, cpu, steps = (b - a for a, b in zip(self.start, now, strict=True))
            self.result = {
                "steps_s": steps / seconds,
                "frames_s": 4 * steps / seconds,
                "cpu_s_per_1k": 1000 * cpu / steps,
                "rss_mb": psutil.Process().memory_info().rss / 2**20,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_envs", type=int, default=32)
    parser.add_argument("--unroll_length", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2, help="Of torch and of the emulators.")
    parser.add_argument("--warmup_secs", type=float, default=15)
    parser.add_argument("--seconds", type=float, default=90)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    envs = AleVecEnv("pong", arguments.num_envs, arguments.threads)
    model = A2C("CnnPolicy", envs, n_steps=arguments.unroll_length, device="cpu")
    window = Window(arguments.warmup_secs, arguments.seconds)
    model.learn(10**12, callback=window)
    print(json.dumps(window.result))


if __name__ == "__main__":
    main()
