"""Named sets of options."""

from __future__ import annotations

from typing import Any

# Of Espeholt et al. 2020, https://arxiv.org/abs/1910.06591. What the paper leaves open is ours: the
# networks, and whatever is not named here.
_DMLAB: dict[str, Any] = {
    "network": "deep",
    "lstm_size": 256,
    "batch_size": 32,
    "unroll_length": 100,
    "discounting": 0.99,
    "lambda_": 0.99,
    "entropy_cost": 1e-5,
    "max_abs_reward": 1.0,
    "optimizer": "adam",
    "learning_rate": 1e-4,
    "adam_beta_1": 0.0,
    "adam_epsilon": 3.125e-7,
}
_FOOTBALL: dict[str, Any] = {
    "network": "deep",
    "lstm_size": 256,
    "batch_size": 32,
    "unroll_length": 32,
    "discounting": 0.997,
    "entropy_cost": 7.33e-4,
    "optimizer": "adam",
    "learning_rate": 1.254e-4,
}

PRESETS = {"paper_dmlab": _DMLAB, "paper_football": _FOOTBALL}
