"""MuJoCo's robots, on the real physics."""

import builtins
import sys

import numpy as np
import pytest

from seed_rl.envs import registry
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType


@pytest.fixture
def mujoco(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where its warnings go, to a file
    pytest.importorskip("mujoco", reason="type pip install -e '.[mujoco]'")
    return registry.load("mujoco")


def play(mujoco, game, env_ids, seed, steps, action_seed=0):
    environments = mujoco.make(mujoco.Config(game), env_ids, seed)
    rows, rng = [environments.reset()], np.random.default_rng(action_seed)
    actions = rng.uniform(-1, 1, (steps, 8, *environments.specs.action.shape)).astype(np.float32)
    for action in actions[:, list(env_ids)]:
        rows.append(environments.step(action))
    environments.close()
    return rows


def test_half_cheetah(mujoco):
    """Case 93: 1,000 steps, then it is truncated; a frame is a step."""
    config = mujoco.Config()
    assert mujoco.specs(config).observation == ArraySpec((17,), "float32")
    assert mujoco.specs(config).action == ArraySpec((6,), "float32", -1, 1)
    assert not hasattr(config, "num_action_repeats")
    assert "HalfCheetah-v5 on MuJoCo" in mujoco.describe(config)
    assert "at most 1000 steps" in mujoco.describe(config)
    kinds = [row.step_type[0] for row in play(mujoco, "HalfCheetah-v5", [0], 0, 1001)]
    assert kinds == [StepType.FIRST, *[StepType.MID] * 999, StepType.TRUNCATED, StepType.FIRST]


def test_robots_that_fall_are_terminated(mujoco):
    kinds = [row.step_type[0] for row in play(mujoco, "Hopper-v5", [0], 0, 200)]
    assert StepType.TERMINATED in kinds
    assert StepType.TRUNCATED not in kinds


def test_actions_reach_the_bounds(mujoco):
    """Humanoid's are 0.4: what moves its joints is what gymnasium is told so."""
    config = mujoco.Config("Humanoid-v5")
    assert mujoco.specs(config).action == ArraySpec((17,), "float32", -1, 1)
    environments = mujoco.make(config, [0], 0)
    environments.reset()
    environments.step(np.ones((1, 17), np.float32))
    controls = environments._envs[0].unwrapped.data.ctrl
    assert np.array_equal(controls, np.full(17, np.float32(0.4)))
    environments.close()


def test_same_seed_and_actions_give_the_same_500_steps(mujoco):
    """Cases 63 and 107: to the last bit, whichever process an environment is in."""
    traces = [
        play(mujoco, "Hopper-v5", env_ids, seed, 500)
        for env_ids, seed in ((range(4), 0), (range(4), 0), (range(2, 4), 0), (range(4), 1))
    ]
    for rows, again, half, other in zip(*traces, strict=True):
        for leaf, same, part in zip(rows, again, half, strict=True):
            assert np.array_equal(leaf, same)
            assert np.array_equal(leaf[2:], part)
        assert not np.array_equal(rows.observation, other.observation)
    starts = [row.observation[row.step_type == StepType.FIRST] for row in traces[0]]
    starts = np.concatenate(starts)
    assert len(np.unique(starts, axis=0)) == len(starts) > 8


@pytest.mark.parametrize(
    ("game", "wanted"),
    [
        ("HalfCheetah", "wanted one of HalfCheetah-v5, HalfCheetah-v4"),
        ("hopper-v5", "Hopper-v5"),
        ("HalfCheetah-v3", "HalfCheetah-v5"),  # needs a package that is no more
        ("CartPole-v1", "Ant-v5"),
    ],
)
def test_other_ids_are_refused_with_what_there_is(mujoco, game, wanted):
    with pytest.raises(ValueError, match=f"--game={game} is no MuJoCo environment") as error:
        mujoco.Config(game)
    assert wanted in str(error.value)


def test_all_robots_step(mujoco):
    for game in mujoco._games():
        if game.endswith("-v5"):
            rows = play(mujoco, game, [0], 0, 3)
            assert np.isfinite(rows[-1].observation).all(), game


def test_the_error_about_the_missing_package_says_what_to_install(monkeypatch):
    real_import = builtins.__import__

    def no_mujoco(name, *args, **kwargs):
        if name == "mujoco":
            raise ModuleNotFoundError("No module named 'mujoco'", name="mujoco")
        return real_import(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "seed_rl.envs.mujoco", raising=False)
    monkeypatch.setattr(builtins, "__import__", no_mujoco)
    with pytest.raises(ImportError, match=r"needs the package mujoco.*'seed_rl\[mujoco\]'"):
        registry.load("mujoco")
