"""Many Atari games stepped by ALE's own C++ threads."""

from __future__ import annotations

from collections.abc import Sequence

import ale_py
import numpy as np

from seed_rl.envs.atari.games import action_codes
from seed_rl.envs.atari.pictures import SIZE
from seed_rl.envs.environment import step_types
from seed_rl.envs.seeding import environment_seed
from seed_rl.specs import EnvironmentSpecs, Nest
from seed_rl.types import StepType, Transition, is_last


def require_actions(action: np.ndarray, num_actions: int) -> None:
    """Raises ValueError unless all actions are there. ALE itself would wait for ever."""
    if action.min() < 0 or action.max() >= num_actions:
        raise ValueError(f"wanted actions from 0 to {num_actions - 1}, saw {action}")


class AtariEnvironments:
    """ALE's vector environment, which resets on the next step, as ours do.

    The last picture of an episode lacks its very last frame: ALE takes none once the game is over
    or cut off, and shows the one before, at worst laid over the picture of the step before.
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
        num_threads: int,
    ) -> None:
        self.specs = specs
        self._num_actions = specs.action.num_choices
        codes = action_codes(rom, full_action_space)
        # Of all 18 actions, the no-op stands for those that ALE does not take.
        self._index_of = (
            np.array([codes.index(code) if code in codes else 0 for code in range(18)])
            if full_action_space and len(codes) < 18
            else None
        )
        self._life_loss = life_loss
        self._seeds: np.ndarray | None = np.array([environment_seed(seed, i) for i in env_ids])
        n = len(self._seeds)
        self._step_type = np.full(n, StepType.TERMINATED, np.uint8)
        self._late_end = np.full(n, StepType.MID, np.uint8)
        self._envs = ale_py.AtariVectorEnv(
            rom,
            n,
            num_threads=num_threads,
            # Counted in frames, though the C++ argument is called max_episode_steps.
            max_num_frames_per_episode=max_episode_frames,
            repeat_action_probability=sticky_actions,
            full_action_space=full_action_space,
            img_height=SIZE,
            img_width=SIZE,
            grayscale=True,
            stack_num=1,  # the learner stacks
            frameskip=num_action_repeats,
            maxpool=True,
            # ALE draws from 0 to this less one.
            noop_max=max_random_noops + 1,
            # Ends an episode for us at a lost life, but does not start the game anew.
            life_loss_info=life_loss,
            reward_clipping=False,
            use_fire_reset=False,
        )

    def reset(self) -> Transition:
        observation, _ = self._envs.reset(seed=self._seeds)
        self._seeds = None  # later resets go on with the same random streams
        self._step_type[:] = StepType.FIRST
        self._late_end[:] = StepType.MID
        reward = np.zeros(len(observation), np.float32)
        return Transition(self._step_type.copy(), reward, reward.copy(), observation[:, 0])

    def step(self, action: Nest) -> Transition:
        resets = is_last(self._step_type)
        require_actions(action, self._num_actions)
        if self._life_loss:
            # A game that goes on after a lost life is stepped once, with a no-op, to get FIRST.
            action = np.where(resets, 0, action)
        if self._index_of is not None:
            action = self._index_of[action]
        observation, score, terminated, truncated, _ = self._envs.step(action)
        step_type = step_types(terminated, truncated)
        if self._life_loss:
            step_type, self._late_end = (
                np.maximum(step_type, self._late_end),
                # That no-op itself may end the episode: the step after FIRST will say so.
                np.where(resets, step_type, np.uint8(StepType.MID)),
            )
        step_type[resets] = StepType.FIRST
        self._step_type = step_type
        reward = np.where(resets, 0, score).astype(np.float32)
        return Transition(step_type.copy(), reward, reward.copy(), observation[:, 0])

    def close(self) -> None:
        # Its threads end with the C++ object; VectorEnv.close() frees nothing.
        if hasattr(self._envs, "ale"):
            del self._envs.ale
