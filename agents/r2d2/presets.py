"""Named sets of options."""

from __future__ import annotations

from typing import Any

# Of Kapturowski et al. 2019, as SEED runs it: Espeholt et al. 2020, appendix A.3,
# https://arxiv.org/abs/1910.06591. On Atari the replay takes some 60 GB.
_PAPER: dict[str, Any] = {
    "network": "nature",
    "lstm_size": 512,
    "dueling_size": 512,
    "unroll_length": 80,
    "burn_in": 40,
    "n_steps": 5,
    "discounting": 0.997,
    "value_function_rescaling_epsilon": 1e-3,
    "max_abs_reward": 0.0,
    "batch_size": 64,
    "optimizer": "adam",
    "learning_rate": 1e-4,
    "learning_rate_decay": False,
    "adam_epsilon": 1e-3,
    "clip_norm": 80.0,
    "update_target_every_n_step": 2500,
    "replay_buffer_size": 100_000,
    "replay_buffer_min_size": 5_000,
    "replay_ratio": 0.75,
    "priority_exponent": 0.9,
    "importance_sampling_exponent": 0.6,
    "priority_eta": 0.9,
    "eval_epsilon": 1e-3,
}

PRESETS = {"paper": _PAPER}
