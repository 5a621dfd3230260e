"""Options of the V-trace agent."""

from __future__ import annotations

import dataclasses

from seed_rl.agents.networks.config import NetworkConfig
from seed_rl.config import option
from seed_rl.optimizer_config import OptimizerConfig


@dataclasses.dataclass(frozen=True)
class VtraceConfig(OptimizerConfig, NetworkConfig):
    """Everything that can be set about the algorithm; each field is a flag."""

    unroll_length: int = option(20, "Transitions in an unroll.")
    batch_size: int = option(4, "Unrolls in a training batch.")
    discounting: float = option(0.99, "Discount of a future reward per agent step.")
    lambda_: float = option(
        0.95, "Mixes n-step returns, from 0 (one step) to 1 (the whole unroll)."
    )
    rho_bar: float = option(1.0, "Clips the importance weights that scale temporal differences.")
    c_bar: float = option(1.0, "Clips the importance weights of the trace.")
    pg_rho_bar: float = option(1.0, "Clips the importance weights of the policy gradient.")
    entropy_cost: float = option(0.001, "Weight of the policy's entropy, which is raised.")
    baseline_cost: float = option(0.5, "Weight of the baseline's loss.")
    kl_cost: float = option(0.0, "Weight of the KL divergence of the policy from the acting one.")
    max_abs_reward: float = option(1.0, "Clips rewards in the loss to +- this. 0: no clipping.")

    def __post_init__(self) -> None:
        OptimizerConfig.__post_init__(self)
        NetworkConfig.__post_init__(self)
        self._require("unroll_length", self.unroll_length >= 1, "an integer of at least 1")
        self._require("batch_size", self.batch_size >= 1, "an integer of at least 1")
        self._require("discounting", 0 <= self.discounting <= 1, "a number in [0, 1]")
        self._require("lambda_", 0 <= self.lambda_ <= 1, "a number in [0, 1]")
        self._require_above_0("rho_bar")
        self._require_above_0("c_bar")
        self._require_above_0("pg_rho_bar")
        # Espeholt et al. 2018, section 4.1, assume it, and the contraction needs it.
        self._require(
            "c_bar", self.c_bar <= self.rho_bar, f"at most --rho_bar, which is {self.rho_bar}"
        )
        for name in ("entropy_cost", "baseline_cost", "kl_cost", "max_abs_reward"):
            self._require_at_least_0(name)
