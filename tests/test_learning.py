"""The learning gate: the whole product, from the launcher to the evaluation, must learn a game."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


@pytest.mark.timeout(600)
def test_vtrace_learns_catch_from_pixels(tmp_path: Any) -> None:
    """Case 49: correct in its parts is not enough. Random play returns about -0.7 here."""
    logdir = str(tmp_path / "run")
    subprocess.run(
        [
            *(sys.executable, "-m", "seed_rl.launcher", "catch", "vtrace", "2", "16"),
            *("--board_size=7", "--total_environment_frames=250000"),
            *("--entropy_cost=0.05", f"--logdir={logdir}"),
        ],
        check=True,
        timeout=500,
        stdin=subprocess.DEVNULL,
    )
    output = subprocess.run(
        [
            *(sys.executable, "-m", "seed_rl.evaluate", f"--logdir={logdir}", "--json"),
            *("--episodes=500", "--num_envs=50"),
        ],
        check=True,
        timeout=100,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    result = json.loads(output.splitlines()[-1])
    assert result["trained_frames"] >= 250_000
    assert result["return_mean"] >= 0.95
