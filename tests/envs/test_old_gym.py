"""Environments of the old package gym itself, by --environment=module:factory."""

import numpy as np
import pytest

from seed_rl.envs.gym.factory import FactoryConfig, FactoryFamily
from seed_rl.types import StepType

gym = pytest.importorskip("gym", reason="gym is not installed: type pip install 'gym>=0.22'")


def make_new():
    """CartPole with the five values a step of gym 0.26. Its checker fails with NumPy 2."""
    return gym.make("CartPole-v1", disable_env_checker=True)


def make_old():
    """The same with four, as all of gym before."""
    wrappers = pytest.importorskip("gym.wrappers.step_api_compatibility", reason="wants gym 0.26")
    return wrappers.StepAPICompatibility(make_new(), output_truncation_bool=False)


def play(factory, seed: int):
    family = FactoryFamily("test:factory", factory)
    config = FactoryConfig()
    assert family.specs(config).observation.shape == (4,)
    assert family.specs(config).action.num_choices == 2
    environments = family.make(config, [0, 1], seed)
    rows = [environments.reset()]
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows.append(environments.step(rng.integers(2, size=2)))
    environments.close()
    return rows


@pytest.mark.parametrize("factory", [make_new, make_old])
def test_episodes_of_the_real_package(factory):
    """Case 107: poles fall, episodes follow each other, and seeds repeat them."""
    rows, again, other = play(factory, 0), play(factory, 0), play(factory, 1)
    kinds = np.array([row.step_type for row in rows])
    assert (kinds[0] == StepType.FIRST).all()
    assert ((kinds[1:] == StepType.FIRST) == (kinds[:-1] == StepType.TERMINATED)).all()
    assert (kinds == StepType.TERMINATED).sum() > 8
    for a, b in zip(rows, again, strict=True):
        assert np.array_equal(a.observation, b.observation)
    assert not np.array_equal(rows[0].observation, other[0].observation)
    assert not np.array_equal(rows[0].observation[0], rows[0].observation[1])


@pytest.mark.parametrize("factory", [make_new, make_old])
def test_time_limits_truncate(factory):
    def make():
        env = factory()
        env.unwrapped.theta_threshold_radians = env.unwrapped.x_threshold = np.inf  # never falls
        return env

    environments = FactoryFamily("test:factory", make).make(FactoryConfig(), [0], 0)
    environments.reset()
    kinds = [int(environments.step(np.array([i % 2])).step_type[0]) for i in range(500)]
    environments.close()
    assert set(kinds[:-1]) == {StepType.MID}
    assert kinds[-1] == StepType.TRUNCATED
