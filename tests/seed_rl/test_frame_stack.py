"""Frame stacks against a naive reference."""

from __future__ import annotations

import numpy as np
import pytest

from seed_rl.frame_stack import FrameStack, stacked_spec
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType

NUM_ENVS = 5
FRAME = ArraySpec((3, 4), "uint8", 0, 255)


class NaiveStack:
    """Lists of frames, oldest first."""

    def __init__(self, depth: int) -> None:
        self._frames = [[np.zeros(FRAME.shape, np.uint8)] * depth for _ in range(NUM_ENVS)]

    def push(self, env_id: int, step_type: int, frame: np.ndarray) -> np.ndarray:
        frames = self._frames[env_id]
        if step_type == StepType.FIRST:
            frames = [np.zeros_like(frame)] * len(frames)
        self._frames[env_id] = [*frames[1:], frame.copy()]
        return np.stack(self._frames[env_id], axis=-1)


@pytest.mark.parametrize("depth", [2, 4, 8])
def test_equals_the_naive_stack(depth: int) -> None:
    """Case 100: batches of any environments in any order, with resets at random."""
    rng = np.random.default_rng(depth)
    stack, naive = FrameStack(NUM_ENVS, FRAME, depth, capacity=NUM_ENVS), NaiveStack(depth)
    for _ in range(200):
        env_ids = rng.permutation(NUM_ENVS)[: rng.integers(1, NUM_ENVS + 1)].astype(np.int32)
        n = len(env_ids)
        step_type = rng.choice(list(StepType), n, p=[0.1, 0.7, 0.1, 0.1]).astype(np.uint8)
        frames = rng.integers(0, 256, (n, *FRAME.shape), np.uint8)
        stacks = stack.push(env_ids, step_type, frames)
        assert stacks.dtype == np.uint8
        assert stacks.shape == (NUM_ENVS, *FRAME.shape, depth)
        for row in range(n):
            expected = naive.push(int(env_ids[row]), int(step_type[row]), frames[row])
            np.testing.assert_array_equal(stacks[row], expected)


@pytest.mark.parametrize("depth", [2, 4, 8])
def test_no_pixel_of_the_last_episode_is_left_after_a_reset(depth: int) -> None:
    """Case 100: episode k paints k."""
    stack = FrameStack(2, FRAME, depth, capacity=2)
    env_ids = np.arange(2, dtype=np.int32)
    for episode in range(1, 6):
        for step in range(depth + 2):
            step_type = np.full(2, StepType.MID if step else StepType.FIRST, np.uint8)
            frames = np.full((2, *FRAME.shape), episode, np.uint8)
            stacks = stack.push(env_ids, step_type, frames)
            filled = min(step + 1, depth)
            assert (stacks[..., depth - filled :] == episode).all()  # newest last
            assert (stacks[..., : depth - filled] == 0).all()


def test_a_push_leaves_other_environments_alone() -> None:
    stack = FrameStack(2, FRAME, 2, capacity=2)
    first, mid = np.array([StepType.FIRST], np.uint8), np.array([StepType.MID], np.uint8)
    one = np.ones((1, *FRAME.shape), np.uint8)
    stack.push(np.array([0]), first, one)
    for _ in range(3):
        stack.push(np.array([1]), first, one * 9)
    assert np.unique(
        stack.push(np.array([0]), mid, one * 2)[0].reshape(-1, 2), axis=0
    ).tolist() == [[1, 2]]


def test_stacked_specs() -> None:
    assert stacked_spec(FRAME, 4) == ArraySpec((3, 4, 4), "uint8", 0, 255)
    # Networks want a channel even where nothing is stacked; what is no gray image stays.
    assert stacked_spec(FRAME, 1) == ArraySpec((3, 4, 1), "uint8", 0, 255)
    others = {"colour": ArraySpec((3, 4, 3), "uint8"), "speed": ArraySpec((2,), "float32")}
    assert stacked_spec(others, 1) == others


@pytest.mark.parametrize("depth", [0, -1, 3, 5, 16])
def test_depths_that_cannot_be(depth: int) -> None:
    with pytest.raises(ValueError, match=f"num_stacked_frames is {depth}; wanted 1, 2, 4 or 8"):
        stacked_spec(FRAME, depth)


@pytest.mark.parametrize(
    "observation",
    [
        ArraySpec((3, 4), "float32"),
        ArraySpec((3, 4, 3), "uint8"),
        ArraySpec((3,), "uint8"),
        {"image": FRAME},
    ],
)
def test_observations_that_cannot_be_stacked(observation: object) -> None:
    with pytest.raises(ValueError, match="num_stacked_frames is 4, but the observation is"):
        stacked_spec(observation, 4)
