"""Adapter from Google Research Football, which has the API of the older gym, to `Environments`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from seed_rl.envs.environment import step_types
from seed_rl.envs.seeding import environment_seed
from seed_rl.specs import EnvironmentSpecs, Nest
from seed_rl.types import StepType, Transition, is_last


def create(scenario: str, rewards: str, size: tuple[int, int]) -> Any:
    """An environment of gfootball that returns stacked Super Mini Maps of `size`, height first."""
    import gfootball.env  # only who plays needs the engine

    return gfootball.env.create_environment(
        env_name=scenario,
        stacked=True,
        representation="extracted",
        rewards=rewards,
        channel_dimensions=size[::-1],
    )


class FootballEnvironments:
    """Environments of gfootball, stepped one by one: its engine keeps the interpreter's lock."""

    def __init__(
        self,
        specs: EnvironmentSpecs,
        make_env: Callable[[], Any],
        env_ids: Sequence[int],
        seed: int,
        num_action_repeats: int,
        clock_ends_game: bool,
    ) -> None:
        self.specs = specs
        self._env_ids = list(env_ids)
        # One draw an episode: it depends on the environment's id and the number of the episode.
        self._rngs = [np.random.default_rng(environment_seed(seed, i)) for i in self._env_ids]
        self._num_action_repeats = num_action_repeats
        self._clock_ends_game = clock_ends_game
        self._step_type = np.full(len(self._env_ids), StepType.TERMINATED, np.uint8)
        self._envs: list[Any] = []
        try:
            for _ in self._env_ids:
                self._envs.append(make_env())
            self._check_spaces(self._envs[0])
        except BaseException:
            self.close()
            raise

    def _check_spaces(self, env: Any) -> None:
        """Raises RuntimeError where this gfootball plays by other rules than the specs tell."""
        wanted = self.specs.observation.bits, self.specs.action.num_choices
        seen = env.observation_space.shape, env.action_space.n
        if seen != wanted:
            raise RuntimeError(
                f"gfootball: wanted observations {list(wanted[0])} and {wanted[1]} actions, saw "
                f"{list(seen[0])} and {seen[1]}: scripts/install_football.sh installs the version "
                "that is wanted"
            )

    def reset(self) -> Transition:
        self._step_type[:] = StepType.TERMINATED
        return self.step(self.specs.action.zeros(len(self._envs)))

    def step(self, action: Nest) -> Transition:
        n = len(self._envs)
        observation = self.specs.observation.zeros(n)
        reward, score = np.zeros(n, np.float32), np.zeros(n, np.float32)
        terminated, truncated = np.zeros(n, bool), np.zeros(n, bool)
        resets = is_last(self._step_type)
        for i in range(n):
            try:
                if resets[i]:
                    seen = self._reset_one(i)
                else:
                    seen, reward[i], score[i], terminated[i], truncated[i] = self._step_one(
                        self._envs[i], int(action[i])
                    )
            except Exception as error:
                raise RuntimeError(
                    f"environment {self._env_ids[i]} failed in {'reset' if resets[i] else 'step'}"
                    f"(): {type(error).__name__}: {error}"
                ) from error
            observation[i] = np.packbits(seen)
        self._step_type = step_types(terminated, truncated)
        self._step_type[resets] = StepType.FIRST
        return Transition(self._step_type.copy(), reward, score, observation)

    def close(self) -> None:
        while self._envs:
            self._envs.pop().close()

    def _reset_one(self, i: int) -> np.ndarray:
        engine_seed = int(self._rngs[i].integers(2**31))
        # The only way to the engine's generator. Which team is moved first would be drawn by
        # gfootball once, from a generator that nobody seeds.
        self._envs[i].unwrapped._config.update(
            {
                "game_engine_random_seed": engine_seed,
                "reverse_team_processing": bool(engine_seed % 2),
            }
        )
        return self._envs[i].reset()

    def _step_one(self, env: Any, action: int) -> tuple[np.ndarray, float, float, bool, bool]:
        """Observation, reward, goals, and whether the episode was terminated or truncated."""
        total, score = 0.0, 0.0
        for _ in range(self._num_action_repeats):
            seen, reward, done, info = env.step(action)
            total += float(reward)
            score += float(info["score_reward"])
            if done:
                break
        truncated = (
            done
            and not self._clock_ends_game
            and not info["score_reward"]
            and env.unwrapped.observation()[0]["steps_left"] <= 0
        )
        return seen, total, score, done and not truncated, truncated
