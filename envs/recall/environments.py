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

    An episode ends with the first number that is not copied: every action that leads on to a
    question is one that the environment chose, whatever the cue.
    """

    def __init__(
        self,
        specs: EnvironmentSpecs,
        num_cues: int,
        delay: int,
        num_questions: int,
        env_ids: Sequence[int],
        seed: int,
    ) -> None:
        self.specs = specs
        self._num_cues = num_cues
        # The cue is shown at time 0; every `_period`th step from there asks for it.
        self._period = delay // num_questions + 1
        self._last = num_questions * self._period
        self._copy_reward = 0.5 / delay
        self._answer_reward = 0.5 / num_questions
        self._rngs = [np.random.default_rng(environment_seed(seed, i)) for i in env_ids]
        n = len(env_ids)
        self._indices = np.arange(n)
        self._time = np.zeros(n, np.int64)
        # What the action should be at each time: the cue at questions, else the number shown.
        self._numbers = np.zeros((n, self._last + 1), np.int64)
        self._step_type = np.full(n, StepType.TERMINATED, np.uint8)

    def reset(self) -> Transition:
        self._step_type[:] = StepType.TERMINATED
        return self.step(np.zeros(len(self._indices), np.int32))

    def step(self, action: Nest) -> Transition:
        resets = is_last(self._step_type)
        right = action == self._wanted()
        answers = (self._time % self._period == 0) & (self._time > 0) & ~resets
        copies = (self._time % self._period > 0) & ~resets
        ended = (copies & ~right) | (answers & (self._time == self._last))
        reward = np.where(copies & right, self._copy_reward, 0).astype(np.float32)
        reward[answers] = np.where(right, self._answer_reward, -self._answer_reward)[answers]
        self._time += 1
        for i in np.flatnonzero(resets):
            self._time[i] = 0
            self._numbers[i] = self._rngs[i].integers(self._num_cues, size=self._last + 1)
            self._numbers[i, :: self._period] = self._numbers[i, 0]
        step_type = step_types(ended, np.zeros_like(ended))
        step_type[resets] = StepType.FIRST
        self._step_type = step_type
        return Transition(step_type.copy(), reward, reward.copy(), self._observation(ended))

    def _wanted(self) -> np.ndarray:
        """What the action should be now; anything where the episode has ended."""
        return self._numbers[self._indices, np.minimum(self._time, self._last)]

    def close(self) -> None:
        pass

    def _observation(self, ended: np.ndarray) -> np.ndarray:
        """Zeros where an episode has ended."""
        observation = np.zeros((len(self._indices), 2 * self._num_cues + 1), np.float32)
        number = self._wanted()
        shows_cue = self._time == 0
        asks = (self._time % self._period == 0) & ~shows_cue & ~ended
        copies = self._indices[(self._time % self._period > 0) & ~ended]
        observation[self._indices[shows_cue], number[shows_cue]] = 1
        observation[copies, self._num_cues + number[copies]] = 1
        observation[asks, -1] = 1
        return observation
