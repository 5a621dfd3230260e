"""The game of Recall, for all environments at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seed_rl.envs.environment import step_types
from seed_rl.envs.seeding import environment_seed
from seed_rl.specs import EnvironmentSpecs, Nest
from seed_rl.types import StepType, Transition, is_last


class RecallEnvironments:
    """Observations are the cue, the number to copy, both one-hot, and 1 where the cue is asked for.

    An episode ends with the first number that is not copied: every action that leads on to the
    question is one that the environment chose, whatever the cue.
    """

    def __init__(
        self, specs: EnvironmentSpecs, num_cues: int, delay: int, env_ids: Sequence[int], seed: int
    ) -> None:
        self.specs = specs
        self._num_cues = num_cues
        self._question = delay + 1  # the time at which the cue is asked for; it is shown at 0
        self._rngs = [np.random.default_rng(environment_seed(seed, i)) for i in env_ids]
        n = len(env_ids)
        self._indices = np.arange(n)
        self._time = np.zeros(n, np.int64)
        # The cue and then the numbers to copy, each in the column of the time that shows it.
        self._numbers = np.zeros((n, self._question), np.int64)
        self._step_type = np.full(n, StepType.TERMINATED, np.uint8)

    def reset(self) -> Transition:
        self._step_type[:] = StepType.TERMINATED
        return self.step(np.zeros(len(self._indices), np.int32))

    def step(self, action: Nest) -> Transition:
        resets = is_last(self._step_type)
        # The question's column is that of the cue.
        wanted = self._numbers[self._indices, self._time % self._question]
        right = (action == wanted) | (self._time == 0)
        answers = self._time == self._question
        ended = ~resets & (~right | answers)
        copied = ~resets & right & ~answers & (self._time > 0)
        reward = np.where(copied, 0.5 / (self._question - 1), 0).astype(np.float32)
        reward[ended & answers] = np.where(right, 0.5, -0.5)[ended & answers]
        self._time += 1
        for i in np.flatnonzero(resets):
            self._time[i] = 0
            self._numbers[i] = self._rngs[i].integers(self._num_cues, size=self._question)
        step_type = step_types(ended, np.zeros_like(ended))
        step_type[resets] = StepType.FIRST
        self._step_type = step_type
        return Transition(step_type.copy(), reward, reward.copy(), self._observation(ended))

    def close(self) -> None:
        pass

    def _observation(self, ended: np.ndarray) -> np.ndarray:
        """Zeros where an episode has ended."""
        observation = np.zeros((len(self._indices), 2 * self._num_cues + 1), np.float32)
        asks = self._time == self._question
        shows = self._indices[~ended & ~asks]
        time = self._time[shows]
        number = self._numbers[shows, time]
        observation[shows, np.where(time == 0, number, self._num_cues + number)] = 1
        observation[~ended & asks, -1] = 1
        return observation
