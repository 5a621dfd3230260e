"""The V-trace agent: its network, how it acts and what it minimises."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from seed_rl import distributions, specs
from seed_rl.agent import ActOutput, Loss
from seed_rl.agents.networks import action_mask
from seed_rl.agents.networks.body import Body
from seed_rl.agents.networks.layers import Linear
from seed_rl.agents.vtrace.config import VtraceConfig
from seed_rl.agents.vtrace.maths import vtrace
from seed_rl.specs import EnvironmentSpecs, Nest
from seed_rl.types import StepInputs, StepType, Unrolls

_POLICY = "policy"  # the extra that holds the parameters of the distribution that acted


class VtraceAgent(tf.Module):
    """Implements seed_rl.agent.Agent with a policy and a baseline head on a shared body."""

    def __init__(self, config: VtraceConfig, environment: EnvironmentSpecs, seed: int) -> None:
        super().__init__(name="vtrace")
        self.unroll_length = config.unroll_length
        self.burn_in = 0
        self.replay = None
        self._config = config
        self._distribution = distributions.for_action(environment.action)
        rng = np.random.default_rng(seed)
        self._body = Body(environment, config, rng)
        # Starts out nearly uniform over actions, and nearly 0.
        size = self._body.output_size
        self._policy = Linear(size, self._distribution.num_parameters, 0.01, rng, "policy")
        self._baseline = Linear(size, 1, 0.1, rng, "baseline")

    def initial_state(self, batch_size: int) -> Nest:
        return self._body.initial_state(batch_size)

    def exploration(self, num_envs: int, num_eval_envs: int) -> np.ndarray:
        """The policy explores by itself, and is what is evaluated."""
        return np.ones(num_envs, np.float32)

    def describe_evaluation(self) -> str:
        return "sampled from the policy"

    def act(
        self, step: StepInputs, state: Nest, seed: tf.Tensor, exploration: tf.Tensor
    ) -> ActOutput:
        features, state = self._body.step(step, state)
        policy = self._masked(self._policy(features), step)
        return ActOutput(self._distribution.sample(policy, seed), {_POLICY: policy}, state)

    def loss(self, unrolls: Unrolls) -> Loss:
        """The costs of policy, baseline, entropy and KL, each a mean over the batch's transitions.

        What leads from the last row of an episode to the first of the next is no transition and
        counts nowhere. Into TERMINATED the discount is 0; into TRUNCATED it is as everywhere, so
        that the value of the last observation stands for the rewards cut off.
        """
        config = self._config
        features, _ = self._body.unroll(unrolls.step, unrolls.state)
        num_rows, batch_size, size = features.shape
        values = tf.reshape(
            self._baseline(tf.reshape(features, [-1, size])), [num_rows, batch_size]
        )
        # Row T only ends the last transition: it needs a value and no policy.
        policy = self._policy(tf.reshape(features[:-1], [-1, size]))
        policy = tf.reshape(policy, [num_rows - 1, batch_size, self._distribution.num_parameters])
        policy = self._masked(policy, specs.map_nest(lambda x: x[:-1], unrolls.step))
        behaviour = unrolls.extras[_POLICY][:-1]
        action = specs.map_nest(lambda x: x[:-1], unrolls.action)
        next_type = unrolls.step.step_type[1:]
        weights = tf.cast(next_type != StepType.FIRST.value, tf.float32)
        rewards = unrolls.step.reward[1:]
        if config.max_abs_reward:
            rewards = tf.clip_by_value(rewards, -config.max_abs_reward, config.max_abs_reward)

        log_probs = self._distribution.log_prob(policy, action)
        targets = vtrace(
            target_log_probs=log_probs,
            behaviour_log_probs=self._distribution.log_prob(behaviour, action),
            discounts=config.discounting
            * tf.cast(next_type != StepType.TERMINATED.value, tf.float32),
            rewards=rewards,
            values=values[:-1],
            bootstrap_value=values[-1],
            weights=weights,
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
            pg_rho_bar=config.pg_rho_bar,
            lambda_=config.lambda_,
        )
        errors = targets.values - values[:-1]

        num_transitions = tf.maximum(tf.reduce_sum(weights), 1.0)

        def mean(x: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(weights * x) / num_transitions

        def variance(x: tf.Tensor) -> tf.Tensor:
            return mean(tf.square(x - mean(x)))

        policy_loss = -mean(log_probs * targets.advantages)
        baseline_loss = 0.5 * mean(tf.square(errors))
        entropy = mean(self._distribution.entropy(policy))
        kl = mean(self._distribution.kl(behaviour, policy))
        loss = (
            policy_loss
            + config.baseline_cost * baseline_loss
            - config.entropy_cost * entropy
            + config.kl_cost * kl
        )
        target_variance = variance(targets.values)
        metrics = {
            "loss": loss,
            "policy_loss": policy_loss,
            "baseline_loss": baseline_loss,
            "entropy": entropy,
            "kl": kl,
            "mean_ratio": mean(tf.minimum(targets.ratios, config.rho_bar)),
            "mean_value": mean(values[:-1]),
            "explained_variance": tf.math.divide_no_nan(
                target_variance - variance(errors), target_variance
            ),
        }
        return Loss(loss, None, metrics)

    def initial_priorities(
        self, step_type: tf.Tensor, reward: tf.Tensor, extras: dict[str, tf.Tensor]
    ) -> tf.Tensor:
        raise NotImplementedError("V-trace has no replay")

    def after_update(self, num_updates: tf.Tensor, unrolls: Unrolls, applied: tf.Tensor) -> None:
        """Takes the observations into what they are normalized by."""
        # The last rows are the first ones of the next unrolls.
        rows = specs.map_nest(lambda x: x[:-1], unrolls.step)
        self._body.update_statistics(rows, applied)

    def _masked(self, policy: tf.Tensor, step: StepInputs) -> tf.Tensor:
        """The parameters `[..., P]` without the choices that steps `[...]` mask."""
        mask = action_mask.find(step.observation)
        return policy if mask is None else self._distribution.masked(policy, mask)
