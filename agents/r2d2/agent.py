"""The R2D2 agent: how it acts and what it minimises."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from seed_rl import distributions, specs
from seed_rl.agent import ActOutput, Loss
from seed_rl.agents.networks import action_mask
from seed_rl.agents.r2d2 import maths
from seed_rl.agents.r2d2.config import R2d2Config, require_choice
from seed_rl.agents.r2d2.exploration import epsilons
from seed_rl.agents.r2d2.network import QNetwork
from seed_rl.specs import EnvironmentSpecs, Nest
from seed_rl.types import StepInputs, Unrolls

# The extras: what the network thought when it acted, for the priority of a new unroll.
_Q_TAKEN = "q_taken"
_Q_MAX = "q_max"


class R2d2Agent(tf.Module):
    """Implements seed_rl.agent.Agent with a Q-network and an older copy of it, the target network.

    Q values are rescaled returns: h(x) of maths.rescale.
    """

    def __init__(self, config: R2d2Config, environment: EnvironmentSpecs, seed: int) -> None:
        super().__init__(name="r2d2")
        require_choice(environment)
        self.unroll_length = config.unroll_length
        # Without memory there is no state to bring up to date: those rows need not even be there.
        self.burn_in = config.burn_in if config.lstm_size else 0
        self.replay = config
        self._config = config
        self._action = environment.action
        self._online = QNetwork(config, environment, seed)
        self._target = QNetwork(config, environment, seed)

    @property
    def trainable_variables(self) -> Any:
        """Not the target network's, which only ever change to the other's."""
        return self._online.trainable_variables

    def initial_state(self, batch_size: int) -> Nest:
        return self._online.initial_state(batch_size)

    def exploration(self, num_envs: int, num_eval_envs: int) -> np.ndarray:
        """Epsilon: the probability of a random action."""
        return epsilons(num_envs, num_eval_envs, self._config.eval_epsilon)

    def describe_evaluation(self) -> str:
        return f"the best, or with probability {self._config.eval_epsilon:g} any (eval_epsilon)"

    def act(
        self, step: StepInputs, state: Nest, seed: tf.Tensor, exploration: tf.Tensor
    ) -> ActOutput:
        q_values, state = self._online.step(step, state)
        q_values = _masked(q_values, step)
        chance, choice = tf.unstack(tf.random.stateless_uniform([2, tf.shape(q_values)[0]], seed))
        best = distributions.best(q_values)
        action = tf.where(chance < exploration, self._random_action(choice, step), best)
        extras = {
            _Q_TAKEN: maths.q_of(q_values, action),
            _Q_MAX: tf.reduce_max(q_values, axis=-1),
        }
        return ActOutput(tf.cast(action, self._action.dtype), extras, state)

    def loss(self, unrolls: Unrolls) -> Loss:
        """0.5 error^2, summed up over an unroll's transitions, and the mean of that over unrolls.

        In this mean each unroll has its weight, which makes up for how often it is sampled.
        """
        online_q = self._q_values(self._online, unrolls)
        target_q = self._q_values(self._target, unrolls)
        _, rows = self._split(unrolls.step)
        action = unrolls.action[self.burn_in : -1]  # that of the last row leads out of the unroll
        q = maths.q_of(online_q[:-1], action)
        values = maths.double_q(_masked(online_q, rows), target_q)
        differences = self._differences(rows.step_type, rows.reward, q, values)
        errors, targets, counts = differences
        losses = 0.5 * tf.reduce_sum(counts * tf.square(errors), axis=0)
        weights = tf.ones_like(losses) if unrolls.weights is None else unrolls.weights
        loss = tf.reduce_mean(weights * losses)
        priorities = maths.priorities(differences, self._config.priority_eta)

        num_transitions = tf.maximum(tf.reduce_sum(counts), 1.0)

        def mean(x: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(counts * x) / num_transitions

        metrics = {
            "loss": loss,
            "mean_abs_td_error": mean(tf.abs(errors)),
            "max_abs_td_error": tf.reduce_max(counts * tf.abs(errors)),
            "mean_q": mean(q),
            "mean_target": mean(targets),
            "mean_priority": tf.reduce_mean(priorities),
            "mean_weight": tf.reduce_mean(weights),
        }
        return Loss(loss, priorities, metrics)

    def initial_priorities(
        self, step_type: tf.Tensor, reward: tf.Tensor, extras: dict[str, tf.Tensor]
    ) -> tf.Tensor:
        """As in the loss, by what the acting network said, which here values the rows as well."""
        differences = self._differences(step_type, reward, extras[_Q_TAKEN][:-1], extras[_Q_MAX])
        return maths.priorities(differences, self._config.priority_eta)

    def after_update(self, num_updates: tf.Tensor, unrolls: Unrolls, applied: tf.Tensor) -> None:
        """Makes the target network equal to the other every so many updates.

        With what that one's observations are normalized by, which these unrolls go into.
        """
        self._online.update_statistics(specs.map_nest(lambda x: x[:-1], unrolls.step), applied)

        def copy() -> tf.Tensor:
            for old, new in zip(self._target.variables, self._online.variables, strict=True):
                old.assign(new)
            return tf.constant(True)

        due = num_updates % self._config.update_target_every_n_step == 0
        tf.cond(due, copy, lambda: tf.constant(False))

    def _random_action(self, choice: tf.Tensor, step: StepInputs) -> tf.Tensor:
        """An action int32 `[N]` for numbers `choice` in [0, 1), `[N]`, equally likely each."""
        mask = action_mask.find(step.observation)
        if mask is None:
            return tf.cast(choice * self._action.num_choices, tf.int32)
        allowed = distributions.allowed(mask)
        counts = tf.cumsum(tf.cast(allowed, tf.int32), axis=-1)
        number = tf.cast(choice * tf.cast(counts[:, -1], tf.float32), tf.int32)
        # The first one with more than so many allowed up to it.
        before = tf.cast(counts <= number[:, tf.newaxis], tf.int32)
        return tf.reduce_sum(before, axis=-1)

    def _q_values(self, network: QNetwork, unrolls: Unrolls) -> tf.Tensor:
        """`[T + 1, B, num_actions]` of the rows after the burn-in."""
        before, rows = self._split(unrolls.step)
        state = unrolls.state
        if not self._config.stored_state:
            state = specs.map_nest(tf.zeros_like, state)
        if self.burn_in:
            state = network.burn_in(before, state)
        return network.unroll(rows, state)

    def _split(self, step: StepInputs) -> tuple[StepInputs, StepInputs]:
        """The rows of the burn-in, and those after it."""
        return (
            specs.map_nest(lambda x: x[: self.burn_in], step),
            specs.map_nest(lambda x: x[self.burn_in :], step),
        )

    def _differences(
        self, step_type: tf.Tensor, reward: tf.Tensor, q: tf.Tensor, values: tf.Tensor
    ) -> maths.Differences:
        config = self._config
        if config.max_abs_reward:
            reward = tf.clip_by_value(reward, -config.max_abs_reward, config.max_abs_reward)
        return maths.temporal_differences(
            maths.transitions(step_type, reward, config.discounting),
            q,
            values,
            config.n_steps,
            config.value_function_rescaling_epsilon,
        )


def _masked(q_values: tf.Tensor, step: StepInputs) -> tf.Tensor:
    """Q values `[..., num_actions]` of steps `[...]`, lowest for actions that can't be taken."""
    mask = action_mask.find(step.observation)
    return q_values if mask is None else distributions.masked(q_values, mask)
