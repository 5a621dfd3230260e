"""The dueling head of "Dueling Network Architectures for Deep Reinforcement Learning", Wang et al.
2016, https://arxiv.org/abs/1511.06581.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from seed_rl.agents.networks.layers import RELU_GAIN, Linear

_OUTPUT_GAIN = 0.1  # all Q values start out near 0, and so do the targets made of them


class DuelingHead(tf.Module):
    """Q values from two streams of their own hidden layer: equation 9, Q = V + A - mean(A).

    Without the mean the same Q could be split into V and A in any number of ways.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_actions: int, rng: np.random.Generator
    ) -> None:
        super().__init__(name="dueling")
        self._value_hidden = Linear(input_size, hidden_size, RELU_GAIN, rng, "value_hidden")
        self._value = Linear(hidden_size, 1, _OUTPUT_GAIN, rng, "value")
        self._advantage_hidden = Linear(input_size, hidden_size, RELU_GAIN, rng, "advantage_hidden")
        self._advantage = Linear(hidden_size, num_actions, _OUTPUT_GAIN, rng, "advantage")

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """Maps features `[N, input_size]` to Q values `[N, num_actions]`."""
        value = self._value(tf.nn.relu(self._value_hidden(features)))
        advantage = self._advantage(tf.nn.relu(self._advantage_hidden(features)))
        return value + advantage - tf.reduce_mean(advantage, axis=-1, keepdims=True)
