import itertools

import numpy as np
import pytest

from seed_rl.envs.environment import step_types
from seed_rl.envs.seeding import environment_seed


def test_step_types():
    terminated = np.array([False, False, True, True])
    truncated = np.array([False, True, False, True])
    kinds = step_types(terminated, truncated)
    assert kinds.dtype == np.uint8
    assert kinds.tolist() == [1, 3, 2, 2]


def test_seeds_differ_among_runs_and_environments():
    """Case 63: also where seed + id is the same."""
    seeds = {environment_seed(*pair) for pair in itertools.product(range(50), range(50))}
    assert len(seeds) == 2500
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert environment_seed(2, 3) == environment_seed(2, 3)
    assert type(environment_seed(0, 0)) is int


def test_negative_seeds_are_refused():
    with pytest.raises(ValueError, match="at least 0, saw -1, 0"):
        environment_seed(-1, 0)
