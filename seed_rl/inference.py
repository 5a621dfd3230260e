"""Central inference: one call of one traced function answers many environments."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from seed_rl import devices, specs
from seed_rl.agent import Agent
from seed_rl.frame_stack import FrameStack, stacked_spec
from seed_rl.specs import ArraySpec, EnvironmentSpecs, Nest
from seed_rl.types import StepInputs, StepType


class Step(NamedTuple):
    """One answered step of an environment, as unrolls keep it. Leaves are arrays `[n, ...]`."""

    step: StepInputs
    action: Nest
    extras: dict[str, Any]


class Answers(NamedTuple):
    step: Step
    state: Nest  # [n, ...], the recurrent state that went into the step


def padded_size(rows: int, capacity: int) -> int:
    """The size at which a batch of `rows` is run: the next power of two, at most `capacity`.

    Devices and libraries tune themselves to each size they meet, so there should be few.
    """
    return min(capacity, 1 << (rows - 1).bit_length())


class Inference:
    """The agent together with what each of `num_envs` environments is in the middle of.

    Recurrent states and previous actions stay on the device in variables, one row for each
    environment and a last one for the padding rows of a batch. Training and evaluation answer
    steps by this one class, and so in the same way. It belongs to one thread.
    """

    def __init__(
        self,
        agent: Agent,
        environment: EnvironmentSpecs,
        num_envs: int,
        capacity: int,
        num_stacked_frames: int = 1,
        seed: int = 0,
        num_eval_envs: int = 0,
    ) -> None:
        """The last `num_eval_envs` environments act as in evaluation."""
        self._num_envs = num_envs
        self._capacity = capacity
        self._agent = agent
        self._seed = seed
        self._calls = 0
        self._observation_spec = stacked_spec(environment.observation, num_stacked_frames)
        self._observation_leaves = specs.flatten(self._observation_spec)
        self._stack = (
            FrameStack(num_envs, environment.observation, num_stacked_frames, capacity)
            if num_stacked_frames > 1
            else None
        )
        zero_states = agent.initial_state(num_envs + 1)
        self._states = tf.nest.map_structure(_local_variable, zero_states)
        self._actions = specs.map_nest(
            lambda spec: _local_variable(tf.zeros((num_envs + 1, *spec.shape), spec.dtype)),
            environment.action,
        )
        exploration = agent.exploration(num_envs, num_eval_envs)
        self._exploration = tf.constant(np.append(exploration, np.float32(0)))
        # Its operations are many and small. Handed from thread to thread, as by default, each may
        # find all threads at the training step's much longer ones, and waits.
        self._executor = devices.one_thread if devices.is_cpu_only() else contextlib.nullcontext
        with self._executor():
            self._act = self._trace(environment.action)

    def _trace(self, action_spec: Nest) -> Any:
        def batched(spec: ArraySpec) -> tf.TensorSpec:
            return tf.TensorSpec((None, *spec.shape), spec.dtype)

        def act(
            env_ids: tf.Tensor,
            step_type: tf.Tensor,
            reward: tf.Tensor,
            seed: tf.Tensor,
            *observation: tf.Tensor,
        ) -> Any:
            state = tf.nest.map_structure(lambda v: v.sparse_read(env_ids), self._states)
            is_first = tf.equal(step_type, StepType.FIRST.value)
            prev_action = specs.map_nest(
                lambda v: _where_rows(is_first, 0, v.sparse_read(env_ids)), self._actions
            )
            inputs = StepInputs(
                step_type,
                reward,
                specs.unflatten(self._observation_spec, list(observation)),
                prev_action,
            )
            exploration = tf.gather(self._exploration, env_ids)
            output = self._agent.act(inputs, state, seed, exploration)
            # Automatic control dependencies keep these writes behind the reads above.
            for variable, rows in zip(
                [*tf.nest.flatten(self._states), *specs.flatten(self._actions)],
                [*tf.nest.flatten(output.state), *specs.flatten(output.action)],
                strict=True,
            ):
                variable.scatter_update(tf.IndexedSlices(rows, env_ids))
            return output.action, output.extras, state, prev_action

        function = tf.function(
            act,
            autograph=False,
            input_signature=[
                tf.TensorSpec([None], tf.int32),
                tf.TensorSpec([None], tf.uint8),
                tf.TensorSpec([None], tf.float32),
                tf.TensorSpec([2], tf.int32),
                *[batched(spec) for spec in specs.flatten(self._observation_spec)],
            ],
        )
        concrete = function.get_concrete_function()
        _, extras, state, _ = concrete.structured_outputs
        scalars = ArraySpec((), "uint8"), ArraySpec((), "float32")
        self.step_specs = Step(
            StepInputs(*scalars, self._observation_spec, action_spec),
            action_spec,
            tf.nest.map_structure(_row_spec, extras),
        )
        self.state_specs = tf.nest.map_structure(_row_spec, state)
        return concrete

    def __call__(
        self,
        env_ids: np.ndarray,
        step_type: np.ndarray,
        reward: np.ndarray,
        observation: Sequence[np.ndarray],
        rows: int,
    ) -> Answers:
        """Answers the first `rows` of the columns, arrays `[capacity, ...]`; ids differ pairwise.

        `observation` holds the leaves of single, unstacked observations. The answers are valid
        until the next call.
        """
        size = padded_size(rows, self._capacity)
        if self._stack is not None:
            (frames,) = observation
            seen = [self._stack.push(env_ids[:rows], step_type[:rows], frames[:rows])]
        else:
            seen = [
                column.reshape(len(column), *spec.shape)
                for column, spec in zip(observation, self._observation_leaves, strict=True)
            ]
        env_ids[rows:size] = self._num_envs
        step_type[rows:size] = StepType.FIRST
        self._calls = (self._calls + 1) % 2**31  # a seed is an int32
        with self._executor():
            action, extras, state, prev_action = self._act(
                tf.constant(env_ids[:size]),
                tf.constant(step_type[:size]),
                tf.constant(reward[:size]),
                tf.constant([self._seed, self._calls]),
                *[tf.constant(column[:size]) for column in seen],
            )

        def fetch(nest: Nest) -> Nest:
            return tf.nest.map_structure(lambda tensor: tensor.numpy()[:rows], nest)

        inputs = StepInputs(
            step_type[:rows],
            reward[:rows],
            specs.unflatten(self._observation_spec, [column[:rows] for column in seen]),
            fetch(prev_action),
        )
        return Answers(Step(inputs, fetch(action), fetch(extras)), fetch(state))


def _local_variable(value: tf.Tensor) -> tf.Variable:
    return tf.Variable(value, trainable=False)


def _row_spec(tensor: tf.Tensor) -> ArraySpec:
    return ArraySpec(tuple(tensor.shape[1:]), tensor.dtype.name)


def _where_rows(condition: tf.Tensor, value: Any, rows: tf.Tensor) -> tf.Tensor:
    """`value` in the rows of `[N, ...]` where the condition `[N]` holds."""
    shape = tf.concat([tf.shape(condition), tf.ones([tf.rank(rows) - 1], tf.int32)], 0)
    return tf.where(tf.reshape(condition, shape), tf.cast(value, rows.dtype), rows)
