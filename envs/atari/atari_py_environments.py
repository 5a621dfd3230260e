"""Atari games on atari-py, the package of the older emulator, stepped one by one."""

from __future__ import annotations

from collections.abc import Sequence

import atari_py
import numpy as np

from seed_rl.envs.atari.environments import require_actions
from seed_rl.envs.atari.pictures import SCREEN, picture
from seed_rl.envs.seeding import environment_seed
from seed_rl.specs import EnvironmentSpecs, Nest
from seed_rl.types import StepType, Transition, is_last

_NOOP = 0  # the first of any game's actions


class AtariPyEnvironments:
    """The protocol of AtariEnvironments on atari-py.

    Where the two differ: the last picture of an episode has its last frames, the random streams
    of no-ops and of sticky actions are others, and this emulator fills its memory at random by its
    seed, which games show that read it before they write it.
    """

    def __init__(
        self,
        specs: EnvironmentSpecs,
        env_ids: Sequence[int],
        seed: int,
        *,
        rom: str,
        num_action_repeats: int,
        max_random_noops: int,
        sticky_actions: float,
        full_action_space: bool,
        max_episode_frames: int,
        life_loss: bool,
    ) -> None:
        self.specs = specs
        self._num_actions = specs.action.num_choices
        self._games = [
            _Game(
                rom,
                environment_seed(seed, env_id),
                num_action_repeats,
                max_random_noops,
                sticky_actions,
                full_action_space,
                max_episode_frames,
                life_loss,
            )
            for env_id in env_ids
        ]
        self._screens = np.zeros((len(self._games), 2, *SCREEN), np.uint8)
        self._step_type = np.full(len(self._games), StepType.TERMINATED, np.uint8)

    def reset(self) -> Transition:
        for game, screens in zip(self._games, self._screens, strict=True):
            game.restart(screens)
        n = len(self._games)
        return self._transition(np.full(n, StepType.FIRST, np.uint8), np.zeros(n, np.float32))

    def step(self, action: Nest) -> Transition:
        require_actions(action, self._num_actions)
        step_type = np.full(len(self._games), StepType.FIRST, np.uint8)
        reward = np.zeros(len(self._games), np.float32)
        resets = is_last(self._step_type).tolist()
        for i, (game, code) in enumerate(zip(self._games, action.tolist(), strict=True)):
            if resets[i]:
                game.start(self._screens[i])
            else:
                reward[i], step_type[i] = game.step(code, self._screens[i])
        return self._transition(step_type, reward)

    def close(self) -> None:
        self._games.clear()  # each emulator ends with its object

    def _transition(self, step_type: np.ndarray, reward: np.ndarray) -> Transition:
        self._step_type = step_type
        observation = picture(np.maximum(self._screens[:, 0], self._screens[:, 1]))
        return Transition(step_type.copy(), reward, reward.copy(), observation)


class _Game:
    """One game. Its methods leave in `screens` `[2, 210, 160]` what its picture is made of."""

    def __init__(
        self,
        rom: str,
        seed: int,
        num_action_repeats: int,
        max_random_noops: int,
        sticky_actions: float,
        full_action_space: bool,
        max_episode_frames: int,
        life_loss: bool,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._repeats = num_action_repeats
        self._max_noops = max_random_noops
        self._max_frames = max_episode_frames
        self._life_loss = life_loss
        self._ale = atari_py.ALEInterface()
        self._ale.setInt("random_seed", max(seed, 1))  # 0 would be the time
        self._ale.setFloat("repeat_action_probability", sticky_actions)
        self._ale.loadROM(atari_py.get_game_path(rom))
        # Those that a game does not take are no-ops to this emulator.
        self._actions: list[int] = (
            list(range(18)) if full_action_space else self._ale.getMinimalActionSet().tolist()
        )
        self._frames = 0
        self._lives = 0
        self._is_over = True

    def start(self, screens: np.ndarray) -> None:
        """Starts an episode: a new game, or the next life of the one that goes on."""
        if not self._is_over:
            # As ALE's vector environment does it: a step of no-ops.
            self.step(_NOOP, screens)
        if self._is_over:
            self.restart(screens)

    def restart(self, screens: np.ndarray) -> None:
        """Starts a new game."""
        self._ale.reset_game()
        for _ in range(self._rng.integers(self._max_noops + 1)):
            self._ale.act(self._actions[_NOOP])
            if self._ale.game_over():
                self._ale.reset_game()
        self._frames = 0
        self._lives = self._ale.lives()
        self._is_over = False
        self._ale.getScreenGrayscale(screens[0])
        screens[1] = 0

    def step(self, action: int, screens: np.ndarray) -> tuple[float, StepType]:
        """Plays the frames of one step: score and step type. A game that is over stands still."""
        repeats = min(self._repeats, self._max_frames - self._frames)
        code = self._actions[action]
        score = 0
        for _ in range(repeats - 2):
            score += self._ale.act(code)
        screens[0] = 0
        for screen in screens[-min(repeats, 2) :]:
            score += self._ale.act(code)
            self._ale.getScreenGrayscale(screen)
        self._frames += repeats
        if self._ale.game_over():
            self._is_over = True
            return score, StepType.TERMINATED
        if self._frames == self._max_frames:
            self._is_over = True
            return score, StepType.TRUNCATED
        if self._life_loss:
            lives, self._lives = self._lives, self._ale.lives()
            if self._lives < lives:
                return score, StepType.TERMINATED
        return score, StepType.MID
