"""The part of a network below its heads: torso, last action and reward, memory."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf

from seed_rl import specs
from seed_rl.agents.networks import action_mask, bits, torsos
from seed_rl.agents.networks.config import NetworkConfig
from seed_rl.agents.networks.lstm import Lstm
from seed_rl.agents.networks.normalization import Normalizer
from seed_rl.specs import ArraySpec, EnvironmentSpecs, Nest
from seed_rl.types import StepInputs, StepType


class Body(tf.Module):
    """Torso features, the last action and the last reward within [-1, 1], side by side.

    Of the action, choices are one-hot and numbers as they are. At FIRST, action and reward are
    zeros. With an LSTM, these are its inputs and its outputs are the features; its state restarts
    at FIRST. Without one the state is `()`.

    Raises ValueError where observations don't fit the network, or their action mask the actions.
    """

    def __init__(
        self, environment: EnvironmentSpecs, config: NetworkConfig, rng: np.random.Generator
    ) -> None:
        super().__init__(name="body")
        action_mask.require_fit(environment)
        self._actions = tuple(specs.flatten(environment.action))
        # Not the specs themselves: tf.Module would wrap their dicts.
        packed = action_mask.without(environment.observation)
        self._unpack = functools.partial(bits.unpack_all, packed)
        seen = bits.unpacked_spec(packed)
        self._normalizer = Normalizer(seen, config.normalize_observations)
        self._torso = torsos.make(
            config.network, self._normalizer.spec(seen), rng, config.precision
        )
        action_size = sum(map(_encoded_size, self._actions))
        self._input_size = self._torso.output_size + action_size + 1
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

    def update_statistics(self, inputs: StepInputs, applied: tf.Tensor) -> None:
        """Takes the observations of steps `[T, B, ...]` into what observations are normalized by.

        Only where `applied`, a bool, holds.
        """
        observation = specs.map_nest(_merge_time_and_batch, inputs.observation)
        self._normalizer.update(self._see(observation), applied)

    def _see(self, observation: Nest) -> Nest:
        """What there is to see in observations `[N, ...]`."""
        return self._unpack(action_mask.without(observation))

    def _embed(self, inputs: StepInputs) -> tf.Tensor:
        parts = list(map(_encode, specs.flatten(inputs.prev_action), self._actions))
        parts.append(tf.clip_by_value(inputs.reward, -1.0, 1.0)[:, tf.newaxis])
        not_first = tf.cast(inputs.step_type != StepType.FIRST.value, tf.float32)
        last = tf.concat(parts, axis=-1) * not_first[:, tf.newaxis]
        observation = self._normalizer(self._see(inputs.observation))
        return tf.concat([self._torso(observation), last], axis=-1)


def _encoded_size(action: ArraySpec) -> int:
    return action.num_choices if specs.is_choice(action) else math.prod(action.shape)


def _encode(action: tf.Tensor, spec: ArraySpec) -> tf.Tensor:
    """Float32 `[N, size]` of actions `[N, ...]`."""
    if specs.is_choice(spec):
        return tf.one_hot(tf.cast(action, tf.int32), spec.num_choices)
    return tf.reshape(action, [-1, _encoded_size(spec)])


def _merge_time_and_batch(x: Any) -> tf.Tensor:
    return tf.reshape(x, [-1, *x.shape[2:]])
