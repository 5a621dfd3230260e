"""Wrong options are refused by name, and reading options needs no TensorFlow."""

from __future__ import annotations

import subprocess
import sys

import pytest

from seed_rl.agents import vtrace
from seed_rl.agents.vtrace.config import VtraceConfig


@pytest.mark.parametrize(
    "options",
    [
        {"unroll_length": 0},
        {"batch_size": 0},
        {"discounting": 1.01},
        {"discounting": -0.1},
        {"lambda_": 1.5},
        {"rho_bar": 0.0},
        {"c_bar": 0.0},
        {"c_bar": 1.5},
        {"pg_rho_bar": -1.0},
        {"entropy_cost": -0.01},
        {"entropy_cost": float("nan")},
        {"baseline_cost": -1.0},
        {"kl_cost": -1.0},
        {"max_abs_reward": -1.0},
        {"network": "resnet"},
        {"lstm_size": -1},
        {"learning_rate": -1.0},
    ],
)
def test_wrong_options_are_named(options: dict[str, object]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"^--{name}=.*: wanted .*; the default is "):
        VtraceConfig(**options)


def test_limits_may_be_raised_together() -> None:
    assert VtraceConfig(rho_bar=2.0, c_bar=1.5).c_bar == 1.5


def test_options_need_no_tensorflow() -> None:
    program = (
        "import sys; from seed_rl.agents import registry; registry.load('vtrace').Config();"
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_the_presets_of_the_paper() -> None:
    """The numbers of Espeholt et al. 2020 (SEED): DMLab-30 and Google Research Football."""
    assert vtrace.PRESETS.keys() == {"paper_dmlab", "paper_football"}
    dmlab = VtraceConfig(**vtrace.PRESETS["paper_dmlab"])
    assert (dmlab.batch_size, dmlab.unroll_length, dmlab.lambda_) == (32, 100, 0.99)
    assert (dmlab.entropy_cost, dmlab.max_abs_reward) == (1e-5, 1.0)
    assert (dmlab.learning_rate, dmlab.adam_epsilon, dmlab.adam_beta_1) == (1e-4, 3.125e-7, 0.0)
    football = VtraceConfig(**vtrace.PRESETS["paper_football"])
    assert (football.batch_size, football.unroll_length, football.discounting) == (32, 32, 0.997)
    assert (football.entropy_cost, football.learning_rate) == (7.33e-4, 1.254e-4)
