"""What batches of replayed unrolls are, and how a training step sees them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from seed_rl import specs
from seed_rl.experience import BatchForm
from seed_rl.inference import Step
from seed_rl.restack import restack
from seed_rl.specs import ArraySpec, Nest
from seed_rl.types import StepInputs, StepType, Unrolls


def num_rows_before(num_stacked_frames: int) -> int:
    """Rows before an unroll that its first one needs, for its stack and its previous action."""
    return max(num_stacked_frames - 1, 1)


def form(
    length: int,
    burn_in: int,
    observation: Nest,
    num_stacked_frames: int,
    step_specs: Step,
    state_specs: Nest,
) -> BatchForm:
    """Steps without what can be put together anew: stacks of frames and previous actions.

    `observation` is the spec of single, unstacked observations; the others are inference's.
    """
    inputs = StepInputs(step_specs.step.step_type, step_specs.step.reward, observation, ())
    before = num_rows_before(num_stacked_frames)

    def unpack(steps: Step, state: Nest, weights: Any) -> Unrolls:
        return Unrolls(
            _complete(steps.step, steps.action, step_specs.step, before),
            specs.map_nest(lambda leaf: leaf[before:], steps.action),
            {},
            state,
            weights,
        )

    stored = Step(inputs, step_specs.action, {})
    return BatchForm(before + burn_in + 1 + length, stored, state_specs, True, unpack)


def _complete(inputs: StepInputs, action: Nest, wanted: StepInputs, num_before: int) -> StepInputs:
    """What networks see of all but the first `num_before` stored rows."""
    is_first = inputs.step_type == StepType.FIRST.value

    def previous(actions: tf.Tensor) -> tf.Tensor:
        shape = [*actions.shape[:2], *[1] * (len(actions.shape) - 2)]
        first = tf.reshape(is_first, shape)[num_before:]
        return tf.where(first, tf.zeros((), actions.dtype), actions[num_before - 1 : -1])

    def see(leaf: tf.Tensor, spec: ArraySpec) -> tf.Tensor:
        if len(spec.shape) == len(leaf.shape) - 2:
            return leaf[num_before:]
        depth = spec.shape[-1]
        if depth == 1:
            return leaf[num_before:, ..., tf.newaxis]
        return restack(leaf, inputs.step_type, depth)[num_before - (depth - 1) :]

    return StepInputs(
        inputs.step_type[num_before:],
        inputs.reward[num_before:],
        specs.map_nest(see, inputs.observation, wanted.observation),
        specs.map_nest(previous, action),
    )
