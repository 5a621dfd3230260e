#!/usr/bin/env python3
"""Trains Pong with PufferLib 3.0's PuffeRL; prints how many agent steps it has trained on, forever.

To be run by a Python that has pufferlib, gymnasium 0.29, ale-py and opencv-python-headless, and not
seed_rl: bench_end_to_end.py does so with `--peer=pufferlib --peer_python=...`. Nature CNN, 84x84
gray frames stacked by 4, frame repeat 4, environments in its own process.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import ale_py  # its import registers the games with gymnasium 0.29
import gymnasium
import numpy as np
import pufferlib.emulation
import pufferlib.models
import pufferlib.pufferl
import pufferlib.vector


def _make_pong(buf: Any = None, seed: int = 0) -> Any:
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    env = gymnasium.make("PongNoFrameskip-v4", full_action_space=True)
    env = gymnasium.wrappers.AtariPreprocessing(env, screen_size=84, frame_skip=4)
    env = gymnasium.wrappers.FrameStack(env, 4)
    env = gymnasium.wrappers.TransformObservation(env, np.asarray)
    return pufferlib.emulation.GymnasiumPufferEnv(env=env, buf=buf, seed=seed)


class _Policy(pufferlib.models.Convolutional):
    """Its Nature CNN, which as released lacks what its trainer calls to act without an LSTM."""

    def forward_eval(self, observations: Any, state: Any = None) -> Any:
        return self.forward(observations, state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_envs", type=int, default=32)
    parser.add_argument("--unroll_length", type=int, default=20)
    arguments = parser.parse_args()
    del sys.argv[1:]  # which PufferLib would read too
    config = pufferlib.pufferl.load_config("pong")["train"]
    config |= {
        "env": "pong",
        "device": "cpu",
        "use_rnn": False,
        "optimizer": "adam",
        "batch_size": arguments.num_envs * arguments.unroll_length,
        "minibatch_size": arguments.num_envs * arguments.unroll_length,
        "bptt_horizon": arguments.unroll_length,
        "update_epochs": 1,
        "total_timesteps": 10**9,
        "checkpoint_interval": 10**9,
    }
    # On two cores two worker processes were no faster.
    envs = pufferlib.vector.make(
        _make_pong, backend=pufferlib.vector.Serial, num_envs=arguments.num_envs
    )
    policy = _Policy(envs, framestack=4, flat_size=64 * 7 * 7)
    trainer = pufferlib.pufferl.PuffeRL(config, envs, policy)
    while True:
        trainer.evaluate()
        trainer.train()
        # Below the dashboard, which the trainer draws now and then.
        print(f"\nsteps={trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
