"""The part of a network below its heads: torso, last action and reward, memory."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from seed_rl import specs
from seed_rl.agents.networks import bits, torsos
from seed_rl.agents.networks.config import NetworkConfig
from seed_rl.agents.networks.lstm import Lstm
from seed_rl.specs import EnvironmentSpecs, Nest
from seed_rl.types import StepInputs, StepType


class Body(tf.Module):
    """Torso features, the last action as one-hot and the last reward within [-1, 1], side by side.

    At FIRST, action and reward are zeros. With an LSTM, these are its inputs and its outputs are
    the features; its state restarts at FIRST. Without one the state is `()`.
    """

    def __init__(
        self, environment: EnvironmentSpecs, config: NetworkConfig, rng: np.random.Generator
    ) -> None:
        super().__init__(name="body")
        self._num_choices = tuple(leaf.num_choices for leaf in specs.flatten(environment.action))
        # Not the specs themselves: tf.Module would wrap their dicts.
        self._unpack = functools.partial(bits.unpack_all, environment.observation)
        unpacked = bits.unpacked_spec(environment.observation)
        self._torso = torsos.make(config.network, unpacked, rng, config.precision)
        self._input_size = self._torso.output_size + sum(self._num_choices) + 1
        size = config.lstm_size
        self._lstm = Lstm(self._input_size, size, rng) if size else None
        self.output_size = size or self._input_size

    def initial_state(self, batch_size: int) -> Nest:
        return self._lstm.initial_state(batch_size) if self._lstm else ()

    def step(self, inputs: StepInputs, state: Nest) -> tuple[tf.Tensor, Nest]:
        """Features `[N, output_size]` of steps `[N, ...]`, and the next state."""
        features = self._embed(inputs)
        if self._lstm is None:
            return features, state
        return self._lstm.step(features, inputs.step_type == StepType.FIRST.value, state)

    def unroll(self, inputs: StepInputs, state: Nest) -> tuple[tf.Tensor, Nest]:
        """Features `[T, B, output_size]` of steps `[T, B, ...]`, and the state after them."""
        length, batch_size = inputs.step_type.shape
        features = self._embed(specs.map_nest(_merge_time_and_batch, inputs))
        features = tf.reshape(features, [length, batch_size, self._input_size])
        if self._lstm is None:
            return features, state
        return self._lstm.unroll(features, inputs.step_type == StepType.FIRST.value, state)

    def _embed(self, inputs: StepInputs) -> tf.Tensor:
        actions = zip(specs.flatten(inputs.prev_action), self._num_choices, strict=True)
        parts = [tf.one_hot(tf.cast(action, tf.int32), size) for action, size in actions]
        parts.append(tf.clip_by_value(inputs.reward, -1.0, 1.0)[:, tf.newaxis])
        not_first = tf.cast(inputs.step_type != StepType.FIRST.value, tf.float32)
        last = tf.concat(parts, axis=-1) * not_first[:, tf.newaxis]
        return tf.concat([self._torso(self._unpack(inputs.observation)), last], axis=-1)


def _merge_time_and_batch(x: Any) -> tf.Tensor:
    return tf.reshape(x, [-1, *x.shape[2:]])
