"""How much each environment explores, of "Distributed Prioritized Experience Replay" (Ape-X),
Horgan et al. 2018, https://arxiv.org/abs/1803.00933.
"""

from __future__ import annotations

import numpy as np


def epsilons(num_envs: int, num_eval_envs: int, eval_epsilon: float) -> np.ndarray:
    """The probability of a random action in each environment, float32 `[num_envs]`.

    Section 4.1: 0.4^(1 + 7 i / (M - 1)) for environment i of the M that are trained on, from 0.4
    down to 0.0007. The last `num_eval_envs` have `eval_epsilon`.
    """
    num_trained = num_envs - num_eval_envs
    exponents = 1 + 7 * np.arange(num_trained) / max(num_trained - 1, 1)
    return np.append(0.4**exponents, np.full(num_eval_envs, eval_epsilon)).astype(np.float32)
