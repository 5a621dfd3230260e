"""The game of Catch, for all environments at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seed_rl.envs.environment import step_types
from seed_rl.envs.seeding import environment_seed
from seed_rl.specs import EnvironmentSpecs, Nest
from seed_rl.types import StepType, Transition, is_last

PIXELS = 84  # Atari's picture size, so that the same networks play it.
_BALL = 255
_PADDLE = 128


class CatchEnvironments:
    def __init__(
        self,
        specs: EnvironmentSpecs,
        board_size: int,
        balls_per_episode: int,
        env_ids: Sequence[int],
        seed: int,
    ) -> None:
        self.specs = specs
        self._size = board_size
        self._balls_per_episode = balls_per_episode
        self._rngs = [np.random.default_rng(environment_seed(seed, i)) for i in env_ids]
        n = len(env_ids)
        self._indices = np.arange(n)
        self._row = np.zeros(n, np.int64)  # of the ball
        self._column = np.zeros(n, np.int64)
        self._paddle = np.zeros(n, np.int64)
        self._balls_left = np.zeros(n, np.int64)
        self._step_type = np.full(n, StepType.TERMINATED, np.uint8)

    def reset(self) -> Transition:
        self._step_type[:] = StepType.TERMINATED
        return self.step(np.zeros(len(self._indices), np.int32))

    def step(self, action: Nest) -> Transition:
        resets = is_last(self._step_type)
        # A ball that landed was still seen on the bottom row; now the next one starts.
        new_balls = (self._row == self._size - 1) & ~resets
        self._paddle = np.clip(self._paddle + action - 1, 0, self._size - 1)
        self._row += 1
        for i in np.flatnonzero(new_balls | resets):
            self._row[i] = 0
            self._column[i] = self._rngs[i].integers(self._size)
        for i in np.flatnonzero(resets):
            self._paddle[i] = self._rngs[i].integers(self._size)
            self._balls_left[i] = self._balls_per_episode
        landed = self._row == self._size - 1
        self._balls_left -= landed
        caught = np.where(self._paddle == self._column, 1, -1)
        reward = np.where(landed, caught, 0).astype(np.float32)
        step_type = step_types(landed & (self._balls_left == 0), np.zeros_like(landed))
        step_type[resets] = StepType.FIRST
        self._step_type = step_type
        return Transition(step_type.copy(), reward, reward.copy(), self._picture())

    def close(self) -> None:
        pass

    def _picture(self) -> np.ndarray:
        n, size, cell = len(self._indices), self._size, PIXELS // self._size
        frames = np.zeros((n, PIXELS, PIXELS), np.uint8)
        cells = frames.reshape(n, size, cell, size, cell)
        cells[self._indices, size - 1, :, self._paddle, :] = _PADDLE
        cells[self._indices, self._row, :, self._column, :] = _BALL
        return frames
