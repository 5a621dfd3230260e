"""Stacks made of stored frames are those that acting saw."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from seed_rl.frame_stack import FrameStack
from seed_rl.restack import restack
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType

NUM_ROWS, BATCH_SIZE, HEIGHT, WIDTH = 40, 3, 5, 4


@pytest.mark.parametrize("depth", [2, 4, 8])
def test_equals_the_stacks_of_acting(depth: int) -> None:
    """Case 100: whatever episodes begin in the rows, also right after each other."""
    rng = np.random.default_rng(depth)
    frames = rng.integers(0, 256, (NUM_ROWS, BATCH_SIZE, HEIGHT, WIDTH), np.uint8)
    step_type = rng.choice(
        np.array([StepType.FIRST, StepType.MID, StepType.TERMINATED], np.uint8),
        (NUM_ROWS, BATCH_SIZE),
        p=[0.3, 0.5, 0.2],
    )
    step_type[0] = StepType.FIRST
    acting = FrameStack(BATCH_SIZE, ArraySpec((HEIGHT, WIDTH), "uint8"), depth, BATCH_SIZE)
    seen = np.array(
        [
            acting.push(np.arange(BATCH_SIZE), step_type[row], frames[row]).copy()
            for row in range(NUM_ROWS)
        ]
    )
    stacks = restack(tf.constant(frames), tf.constant(step_type), depth).numpy()
    np.testing.assert_array_equal(stacks, seen[depth - 1 :])
