"""Learning and evaluation on the double of DeepMind Lab."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys

import pytest
from learners import make_learner, running

from seed_rl.envs import dmlab
from seed_rl.evaluate import EvaluateConfig, evaluate

DOUBLE = pathlib.Path(__file__).parents[1] / "tools/dmlab_double"
# What the paper takes, but for what makes it wait for many machines.
PAPER = (
    *("--entropy_cost=0.00001", "--lambda_=0.99", "--discounting=0.99", "--max_abs_reward=1"),
    *("--optimizer=adam", "--learning_rate=1e-4", "--adam_beta_1=0", "--adam_epsilon=3.125e-7"),
)


@pytest.fixture(autouse=True)
def _double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LP_NUM_THREADS", "0")
    monkeypatch.setenv("DMLAB_DOUBLE_FRAMES", "200")


@pytest.mark.timeout(150)
def test_launched_training_and_evaluation(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner and two actors, which find the module by PYTHONPATH; then its checkpoint plays.

    Instructions take the whole way. The evaluation is on what the family says.
    """
    result = subprocess.run(
        [
            *(sys.executable, "-m", "seed_rl.launcher", "dmlab", "vtrace", "2", "2"),
            *("--game=language_select_described_object", "--logdir=run"),
            f"--level_cache_dir={tmp_path}/levels",
            *("--unroll_length=10", "--batch_size=2", "--total_environment_frames=2000", *PAPER),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(DOUBLE)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout
    assert "Traceback" not in result.stdout
    assert "level cache" not in result.stdout
    assert len(list((tmp_path / "levels").iterdir())) >= 4

    def evaluation_config(config: dmlab.Config) -> dmlab.Config:
        assert config.game == "language_select_described_object"
        return dataclasses.replace(config, game="language_execute_random_task")

    monkeypatch.setattr(dmlab, "evaluation_config", evaluation_config)
    played = evaluate(EvaluateConfig(logdir=str(tmp_path / "run"), episodes=2, num_envs=2))
    assert "contributed/dmlab30/language_execute_random_task" in played.protocol
    assert played.lengths == [50, 50]
    assert played.frames >= 2000


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["vtrace", "r2d2"])
def test_instructions_and_an_lstm(tmp_path: pathlib.Path, agent: str) -> None:
    options = {"lstm_size": 16}
    if agent == "r2d2":
        options |= {"replay_buffer_size": 100, "replay_buffer_min_size": 10, "burn_in": 2}
    game = "language_select_described_object"
    learner = make_learner(tmp_path / "run", "dmlab", agent, game=game, **options)
    with running(learner) as run:
        run.wait_for_updates(3)
        assert run.actor_failures == []
