"""Seeds of single environments."""

from __future__ import annotations

import numpy as np


def environment_seed(seed: int, env_id: int) -> int:
    """A seed in 0..2^31 - 1 that depends on the run's seed and the global environment id only.

    Hashed, so that neither neighbouring ids nor neighbouring runs share random streams.
    """
    if seed < 0 or env_id < 0:
        raise ValueError(f"wanted a seed and an environment id of at least 0, saw {seed}, {env_id}")
    return int(np.random.SeedSequence((seed, env_id)).generate_state(1)[0] >> 1)


def episode_seed(seed: int, env_id: int, episode: int) -> int:
    """The same for one episode of the environment, where every reset is given a seed."""
    return environment_seed(environment_seed(seed, env_id), episode)
