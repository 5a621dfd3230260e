"""Several levels of DeepMind Lab, stepped one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from seed_rl.envs.dmlab import instructions
from seed_rl.envs.seeding import episode_seed
from seed_rl.specs import ArraySpec, EnvironmentSpecs
from seed_rl.types import StepType, Transition, is_last

FRAME = "RGB_INTERLEAVED"
INSTRUCTION = "INSTR"

# Look right and down in pixels a frame, strafe right, move forward, fire, jump, crouch. One array
# each: DeepMind Lab reads seven C integers from where an array starts, whatever its strides.
ACTIONS = tuple(
    np.array(action, np.intc)
    for action in (
        (0, 0, 0, 1, 0, 0, 0),  # forward
        (0, 0, 0, -1, 0, 0, 0),  # backward
        (0, 0, -1, 0, 0, 0, 0),  # strafe left
        (0, 0, 1, 0, 0, 0, 0),  # strafe right
        (-20, 0, 0, 0, 0, 0, 0),  # look left
        (20, 0, 0, 0, 0, 0, 0),  # look right
        (-20, 0, 0, 1, 0, 0, 0),  # look left and forward
        (20, 0, 0, 1, 0, 0, 0),  # look right and forward
        (0, 0, 0, 0, 1, 0, 0),  # fire
    )
)


class DmlabEnvironments:
    """One `deepmind_lab.Lab` for each id, made once: each new one would leak file descriptors.

    Observations are frames uint8 `[n, height, width, 3]`, or a dict of `frame` and `instruction`,
    int32 `[n, 16]`. DeepMind Lab has no observation after an episode's last step: the one before
    stands in for it. Each episode has a seed of its own, of the run's seed, id and its number.
    """

    def __init__(
        self,
        specs: EnvironmentSpecs,
        env_ids: Sequence[int],
        seed: int,
        make_lab: Callable[[], Any],
        num_action_repeats: int,
    ) -> None:
        self.specs = specs
        self._has_instruction = isinstance(specs.observation, dict)
        self._frame_spec: ArraySpec = (
            specs.observation["frame"] if self._has_instruction else specs.observation
        )
        self._env_ids = list(env_ids)
        self._seed = seed
        self._num_action_repeats = num_action_repeats
        self._episodes = [0] * len(self._env_ids)  # started so far
        self._step_type = np.full(len(self._env_ids), StepType.TERMINATED, np.uint8)
        self._frames, self._instructions = self._new_columns()
        self._labs: list[Any] = []
        try:
            for _ in self._env_ids:
                self._labs.append(make_lab())
        except BaseException:
            self.close()
            raise

    def reset(self) -> Transition:
        self._step_type[:] = StepType.TERMINATED
        return self.step(np.zeros(len(self._env_ids), np.int32))

    def step(self, action: np.ndarray) -> Transition:
        n = len(self._labs)
        # New arrays each time: the last transition is still its receiver's.
        frames, words = self._new_columns()
        step_type = np.full(n, StepType.MID, np.uint8)
        rewards = np.zeros(n, np.float32)
        resets, choices = is_last(self._step_type).tolist(), action.tolist()
        for i, lab in enumerate(self._labs):
            try:
                if resets[i]:
                    self._start_episode(i)
                    step_type[i] = StepType.FIRST
                else:
                    rewards[i] = lab.step(ACTIONS[choices[i]], num_steps=self._num_action_repeats)
                    if not lab.is_running():
                        step_type[i] = StepType.TERMINATED
                        frames[i], words[i] = self._frames[i], self._instructions[i]
                        continue
                observation = lab.observations()
            except Exception as error:
                raise RuntimeError(
                    f"environment {self._env_ids[i]} failed in {'reset' if resets[i] else 'step'}"
                    f"(): {type(error).__name__}: {error}"
                ) from error
            frames[i] = self._read_frame(i, observation[FRAME])
            if self._has_instruction:
                words[i] = self._read_instruction(i, observation[INSTRUCTION])
        self._step_type, self._frames, self._instructions = step_type, frames, words
        seen = {"frame": frames, "instruction": words} if self._has_instruction else frames
        return Transition(step_type.copy(), rewards, rewards.copy(), seen)

    def close(self) -> None:
        while self._labs:
            self._labs.pop().close()

    def _new_columns(self) -> tuple[np.ndarray, np.ndarray]:
        n = len(self._env_ids)
        num_words = instructions.MAX_WORDS if self._has_instruction else 0
        return (
            np.empty((n, *self._frame_spec.shape), self._frame_spec.dtype),
            np.empty((n, num_words), instructions.SPEC.dtype),
        )

    def _start_episode(self, i: int) -> None:
        episode = self._episodes[i]
        self._episodes[i] += 1
        seed = episode_seed(self._seed, self._env_ids[i], episode)
        self._labs[i].reset(episode=episode, seed=seed)

    def _read_frame(self, i: int, frame: Any) -> np.ndarray:
        array, spec = np.asarray(frame), self._frame_spec
        if array.shape != spec.shape or array.dtype != spec.dtype:
            raise ValueError(
                f"environment {self._env_ids[i]}: {FRAME}: wanted {spec}, "
                f"saw {array.dtype.name}{list(array.shape)}"
            )
        return array

    def _read_instruction(self, i: int, text: Any) -> np.ndarray:
        if not isinstance(text, str):
            raise ValueError(
                f"environment {self._env_ids[i]}: {INSTRUCTION}: wanted a str, saw {text!r}"
            )
        return instructions.encode(text)
