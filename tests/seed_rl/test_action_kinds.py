"""Whole trainings with actions of every kind: real learner, real actors, evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from learners import make_learner, running
from small_environments import LENGTH

from seed_rl.evaluate import EvaluateConfig, evaluate
from seed_rl.learner import Learner

R2D2 = {
    "agent": "r2d2",
    "unroll_length": 8,
    "burn_in": 2,
    "batch_size": 8,
    "replay_buffer_size": 200,
    "replay_buffer_min_size": 8,
    "lstm_size": 8,
    "dueling_size": 16,
}


def train(learner: Learner, secs: float = 100.0) -> None:
    with running(learner) as run:
        run.join(secs)
        assert run.failure is None
        assert not run.actor_failures


def returns(logdir: Any, episodes: int = 200) -> float:
    config = EvaluateConfig(logdir=str(logdir), episodes=episodes, num_envs=10)
    return float(np.mean(evaluate(config).returns))


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ("Buttons", {"lstm_size": 8}),
        ("Everything", {}),
        pytest.param("Everything", {"lstm_size": 8, "network": "deep"}, marks=pytest.mark.slow),
        ("Masked", {}),
        ("Masked", R2D2),
    ],
)
def test_trains_and_evaluates(tmp_path: Any, environment: str, options: dict[str, Any]) -> None:
    """Case 59. The environments refuse actions outside their spaces, and masked ones."""
    learner = make_learner(
        tmp_path / "run",
        f"small_environments:{environment}",
        **{"total_environment_frames": 400, **options},
    )
    train(learner)
    assert learner.num_updates > 0
    assert np.isfinite(returns(tmp_path / "run", 20))


def test_numbers_travel_by_the_python_core(tmp_path: Any) -> None:
    learner = make_learner(
        tmp_path / "run",
        "small_environments:Everything",
        total_environment_frames=100,
        core="python",
    )
    train(learner)


def test_learns_to_hit_a_target(tmp_path: Any) -> None:
    """Continuous control. The best return is 8, or 7.4 with the least noise that there can be;
    what hits the middle at all times gets 4.
    """
    learner = make_learner(
        tmp_path / "run",
        "small_environments:Target",
        total_environment_frames=40_000,
        batch_size=8,
        unroll_length=LENGTH,
        discounting=0.0,
        learning_rate=1e-3,
        entropy_cost=0.01,
    )
    train(learner)
    assert returns(tmp_path / "run") > 6.5


@pytest.mark.slow
def test_learns_among_what_is_allowed(tmp_path: Any) -> None:
    """Action masks: the mean of the best of those allowed is 5.8, of any of them 4."""
    learner = make_learner(
        tmp_path / "run",
        "small_environments:Masked",
        total_environment_frames=20_000,
        batch_size=8,
        unroll_length=LENGTH,
        discounting=0.0,
        learning_rate=2e-3,
    )
    train(learner)
    assert returns(tmp_path / "run") > 5.2
