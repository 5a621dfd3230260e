#!/usr/bin/env python3
"""Trains Pong with RLlib's IMPALA; prints how many agent steps it has trained on, forever.

To be run by a Python that has ray[rllib], torch, ale-py and opencv-python-headless, and not
seed_rl: bench_end_to_end.py does so with `--peer=rllib --peer_python=...`. Nature CNN, RLlib's own
Atari wrappers (84x84 gray frames stacked by 4, frame repeat 4), two environment runners.
"""

from __future__ import annotations

import argparse
from typing import Any

import ale_py
import gymnasium
import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env

_RUNNERS = 2


def _make_pong(settings: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    gymnasium.register_envs(ale_py)
    env = gymnasium.make("PongNoFrameskip-v4", full_action_space=True)
    return wrap_atari_for_new_api_stack(env, dim=84, framestack=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_envs", type=int, default=32)
    parser.add_argument("--unroll_length", type=int, default=20)
    arguments = parser.parse_args()
    # More than the machine may have: what counts is that all its processes are let start.
    ray.init(num_cpus=2 + _RUNNERS, include_dashboard=False)
    register_env("pong", _make_pong)
    config = (
        IMPALAConfig()
        .environment("pong")
        .env_runners(
            num_env_runners=_RUNNERS,
            num_envs_per_env_runner=arguments.num_envs // _RUNNERS,
            rollout_fragment_length=arguments.unroll_length,
        )
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=arguments.num_envs * arguments.unroll_length)
        .reporting(min_time_s_per_iteration=1)
        .rl_module(
            model_config=DefaultModelConfig(
                conv_filters=[(32, 8, 4), (64, 4, 2), (64, 3, 1)],
                conv_activation="relu",
                head_fcnet_hiddens=[512],
                head_fcnet_activation="relu",
                vf_share_layers=True,
            )
        )
    )
    algorithm = config.build_algo()
    while True:
        learner = algorithm.train().get("learners", {}).get("__all_modules__", {})
        print(f"steps={learner.get('num_env_steps_trained_lifetime', 0):.0f}", flush=True)


if __name__ == "__main__":
    main()
