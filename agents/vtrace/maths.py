"""V-trace targets, of "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
Actor-Learner Architectures", Espeholt et al. 2018, https://arxiv.org/abs/1802.01561.

Time-major. Transition t leads from row t of an unroll to row t + 1.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class VtraceTargets(NamedTuple):
    """Constants to the gradient, float32 `[T, B]`; where the weight is 0: V, 0 and the ratio."""

    values: tf.Tensor  # what the baseline should say, vs of equation 1
    advantages: tf.Tensor  # what scales grad log pi(a), with its importance weight
    ratios: tf.Tensor  # pi(a) / mu(a), unclipped


def vtrace(
    target_log_probs: tf.Tensor,
    behaviour_log_probs: tf.Tensor,
    discounts: tf.Tensor,
    rewards: tf.Tensor,
    values: tf.Tensor,
    bootstrap_value: tf.Tensor,
    weights: tf.Tensor,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
    lambda_: float = 1.0,
) -> VtraceTargets:
    """Computes equation 1, by the recursion of remark 1, and the advantage of section 4.2.

        vs[t] = V[t] + delta[t] + discount[t] c[t] (vs[t+1] - V[t+1])
        delta[t] = rho[t] (reward[t] + discount[t] V[t+1] - V[t])
        advantage[t] = pg_rho[t] (reward[t] + discount[t] vs[t+1] - V[t])

    Args:
      target_log_probs: `[T, B]`, of the taken actions, under the policy being learned.
      behaviour_log_probs: `[T, B]`, the same under the policy that acted.
      discounts: `[T, B]`, 0 for a transition into a terminal state.
      rewards: `[T, B]`, of the transition.
      values: `[T, B]`, V of the rows that the transitions leave.
      bootstrap_value: `[B]`, V of row T.
      weights: `[T, B]`, 0 for what is no transition: from the last row of an episode to the first
        of the next. It ends the trace, so that vs = V on the last row, and 1 elsewhere.
      rho_bar: limit of rho = pi(a) / mu(a).
      c_bar: limit of the same ratio in c, which `lambda_` scales.
      pg_rho_bar: limit of the same ratio in the advantage.
      lambda_: 1 for the equations of the paper, less for a shorter trace (its remark 2).
    """
    target_log_probs, behaviour_log_probs, discounts, rewards, values, bootstrap_value = map(
        tf.stop_gradient,
        (target_log_probs, behaviour_log_probs, discounts, rewards, values, bootstrap_value),
    )
    ratios = tf.exp(target_log_probs - behaviour_log_probs)
    next_values = tf.concat([values[1:], bootstrap_value[tf.newaxis]], axis=0)
    deltas = tf.minimum(ratios, rho_bar) * (rewards + discounts * next_values - values)
    decays = lambda_ * tf.minimum(ratios, c_bar) * discounts
    corrections = backward_recursion(weights * deltas, weights * decays)  # vs - V
    targets = values + corrections
    next_targets = tf.concat([targets[1:], bootstrap_value[tf.newaxis]], axis=0)
    advantages = tf.minimum(ratios, pg_rho_bar) * (rewards + discounts * next_targets - values)
    return VtraceTargets(targets, weights * advantages, ratios)


def backward_recursion(terms: tf.Tensor, decays: tf.Tensor) -> tf.Tensor:
    """Solves x[t] = terms[t] + decays[t] x[t+1] with x[T] = 0, all `[T, B]`, T known at tracing.

    After k rounds each x[t] holds the part of its sum that lies within 2^k steps, and decays[t] is
    the product that carries x[t + 2^k] back to t. So it takes log2(T) rounds and no loop in the
    graph: the single-threaded executor runs no loops.
    """
    length = terms.shape[0]
    distance = 1
    while distance < length:
        padding = [[0, distance], [0, 0]]
        terms += decays * tf.pad(terms[distance:], padding)
        decays *= tf.pad(decays[distance:], padding)
        distance *= 2
    return terms
