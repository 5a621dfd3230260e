"""The recurrent dueling Q-network of R2D2."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from seed_rl import specs
from seed_rl.agents.networks.body import Body
from seed_rl.agents.networks.dueling import DuelingHead
from seed_rl.agents.r2d2.config import R2d2Config
from seed_rl.specs import EnvironmentSpecs, Nest
from seed_rl.types import StepInputs


class QNetwork(tf.Module):
    """A body with a dueling head. Equal seeds give equal networks."""

    def __init__(self, config: R2d2Config, environment: EnvironmentSpecs, seed: int) -> None:
        super().__init__(name="q_network")
        rng = np.random.default_rng(seed)
        self._body = Body(environment, config, rng)
        num_actions = environment.action.num_choices
        self._head = DuelingHead(self._body.output_size, config.dueling_size, num_actions, rng)

    def initial_state(self, batch_size: int) -> Nest:
        return self._body.initial_state(batch_size)

    def step(self, inputs: StepInputs, state: Nest) -> tuple[tf.Tensor, Nest]:
        """Q values `[N, num_actions]` of steps `[N, ...]`, and the next state."""
        features, state = self._body.step(inputs, state)
        return self._head(features), state

    def unroll(self, inputs: StepInputs, state: Nest) -> tf.Tensor:
        """Q values `[T, B, num_actions]` of steps `[T, B, ...]`."""
        features, _ = self._body.unroll(inputs, state)
        length, batch_size, size = features.shape
        q_values = self._head(tf.reshape(features, [-1, size]))
        return tf.reshape(q_values, [length, batch_size, q_values.shape[-1]])

    def update_statistics(self, inputs: StepInputs, applied: tf.Tensor) -> None:
        self._body.update_statistics(inputs, applied)

    def burn_in(self, inputs: StepInputs, state: Nest) -> Nest:
        """The state after steps `[K, B, ...]`, a constant to the gradient."""
        _, state = self._body.unroll(inputs, state)
        return specs.map_nest(tf.stop_gradient, state)
