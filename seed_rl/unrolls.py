"""Cuts the stream of steps of every environment into unrolls of T + 1 steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seed_rl.specs import ArraySpec


class UnrollStore:
    """The unroll in progress of each environment.

    Unrolls overlap by one step: the last step of one, whose value the loss bootstraps from, is the
    first of the next. Each comes with the recurrent state that went into one of its steps, by
    default the first.

    Were all environments to start their first unroll at once, they would end it at once, and
    batches would come in bursts. So of G groups of environments the one numbered g first lets
    g * T / G steps pass. Those of one group end their unrolls together: were a batch made of them
    one by one, the first would wait for the last, and the steps in it would be older.
    """

    def __init__(
        self,
        num_envs: int,
        length: int,
        step_specs: Sequence[ArraySpec],
        state_specs: Sequence[ArraySpec],
        group_size: int = 1,
        state_position: int = 0,
    ) -> None:
        """`state_position`, 0 to T, is the step whose state is kept."""
        self.length = length
        self._state_position = state_position
        self.steps = [spec.zeros(num_envs, length + 1) for spec in step_specs]
        self.states = [spec.zeros(num_envs) for spec in state_specs]
        self.versions = np.zeros((num_envs, length + 1), np.int64)
        num_groups = -(-num_envs // group_size)
        skipped = np.arange(num_envs) // group_size * length // num_groups
        self._start = -skipped
        self._position = self._start.copy()

    def restart(self, env_ids: np.ndarray) -> None:
        """Drops the unroll in progress of these environments: their actor has started anew."""
        self._position[env_ids] = self._start[env_ids]

    def append(
        self,
        env_ids: np.ndarray,
        steps: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
        version: int,
    ) -> np.ndarray:
        """Adds one step of each of the environments, arrays `[n, ...]`.

        `states` went into these steps, `version` of the weights answered them. Returns the ids of
        environments whose unroll is now whole: read it from `steps[..][id]`, `states[..][id]` and
        `versions[id]`, then call `advance`.
        """
        position = self._position[env_ids]
        self._position[env_ids] = position + 1
        if position.min(initial=0) < 0:
            started = position >= 0
            env_ids, position = env_ids[started], position[started]
            steps = [column[started] for column in steps]
            states = [column[started] for column in states]
        for store, column in zip(self.steps, steps, strict=True):
            store[env_ids, position] = column
        self.versions[env_ids, position] = version
        kept = position == self._state_position
        if kept.any():
            self._set_states(env_ids[kept], [column[kept] for column in states])
        whole = position == self.length
        self._next_states = [column[whole] for column in states]
        return env_ids[whole]

    def advance(self, env_ids: np.ndarray) -> None:
        """Begins the next unroll of the environments that the last `append` returned."""
        for store in self.steps:
            store[env_ids, 0] = store[env_ids, self.length]
        self.versions[env_ids, 0] = self.versions[env_ids, self.length]
        if self._state_position == 0:
            self._set_states(env_ids, self._next_states)
        self._position[env_ids] = 1

    def _set_states(self, env_ids: np.ndarray, states: Sequence[np.ndarray]) -> None:
        for store, column in zip(self.states, states, strict=True):
            store[env_ids] = column
