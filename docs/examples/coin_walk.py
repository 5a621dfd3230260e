"""An environment of one's own: python -m seed_rl --environment=coin_walk:CoinWalk ..."""

import gymnasium
import numpy as np


class CoinWalk(gymnasium.Env):
    """A walker on a line of 9 places looks for a coin; each step costs a little."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.walker, self.coin = self.np_random.choice(9, size=2, replace=False)
        self.steps = 0
        return self._observation(), {}

    def step(self, action):
        self.walker = np.clip(self.walker + (1 if action == 1 else -1), 0, 8)
        self.steps += 1
        found = self.walker == self.coin
        reward = 1.0 if found else -0.02
        return self._observation(), reward, found, self.steps == 50, {}

    def _observation(self):
        return np.array([self.walker, self.coin], np.float32) / 4 - 1
