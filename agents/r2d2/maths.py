"""The maths of "Recurrent Experience Replay in Distributed Reinforcement Learning" (R2D2),
Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX.

Time-major. Transition t leads from row t of an unroll to row t + 1. Any float dtype.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from seed_rl.types import StepType


def rescale(x: tf.Tensor, epsilon: float) -> tf.Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, any shape.

    It brings returns of any size to a scale that a network learns well, in place of clipped
    rewards: Pohlen et al. 2018, https://arxiv.org/abs/1805.11593, proposition A.2.
    """
    # sqrt(|x| + 1) - 1 would lose all digits of a small x.
    return x / (tf.sqrt(tf.abs(x) + 1.0) + 1.0) + epsilon * x


def unrescale(x: tf.Tensor, epsilon: float) -> tf.Tensor:
    """The inverse of `rescale`, any shape:

        sign(x) (y^2 - 1) with y = (s - 1) / (2 epsilon)
        and s = sqrt(1 + 4 epsilon (|x| + 1 + epsilon))

    As written it would subtract nearly equal numbers twice, and divide 0 by 0 without an epsilon.
    Since s^2 = (1 + 2 epsilon)^2 + 4 epsilon |x|, y - 1 has |x| as a factor.
    """
    magnitude = tf.abs(x)
    s = tf.sqrt(1.0 + 4.0 * epsilon * (magnitude + (1.0 + epsilon)))
    y_minus_1 = magnitude * (2.0 - 4.0 * epsilon / (1.0 + 2.0 * epsilon + s)) / (1.0 + s)
    return tf.sign(x) * y_minus_1 * (y_minus_1 + 2.0)


class Transitions(NamedTuple):
    """What led from each row of an unroll to the next, `[T, B]`."""

    rewards: tf.Tensor
    discounts: tf.Tensor  # 0 into a terminal state
    real: tf.Tensor  # bool; False from the last row of an episode to the first of the next


def transitions(step_type: tf.Tensor, reward: tf.Tensor, discounting: float) -> Transitions:
    """Reads the transitions off rows `[T + 1, B]`."""
    next_type = step_type[1:]
    going_on = tf.cast(next_type != StepType.TERMINATED.value, reward.dtype)
    return Transitions(reward[1:], discounting * going_on, next_type != StepType.FIRST.value)


def n_step_returns(steps: Transitions, values: tf.Tensor, n_steps: int) -> tf.Tensor:
    """The returns that Q values should predict, `[T, B]`: the target of section 2.3 before h.

        G[t] = reward[t] + discount[t] reward[t+1] + ... + discount[t] ... discount[t+n-1] V[t+n]

    A return ends sooner, and bootstraps from the row where it ends, at the end of the unroll and at
    the last row of an episode. So a truncated episode goes on as its last row's own value, a
    terminated one as nothing. Where there is no transition, it is V.

    Args:
      steps: the transitions, `[T, B]`.
      values: `[T + 1, B]`, V of each row, in units of the reward.
      n_steps: n, the most rewards that are summed up.
    """
    returns = values
    for _ in range(n_steps):  # each round lengthens every return by one reward
        longer = tf.where(steps.real, steps.rewards + steps.discounts * returns[1:], values[:-1])
        returns = tf.concat([longer, values[-1:]], axis=0)
    return returns[:-1]


def q_of(q_values: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
    """The Q value `[...]` of each action `[...]` among `[..., num_actions]`."""
    return tf.gather(q_values, tf.cast(action, tf.int32), batch_dims=q_values.shape.rank - 1)


def double_q(online_q: tf.Tensor, target_q: tf.Tensor) -> tf.Tensor:
    """Values `[...]` that choose by one network and ask the other, both `[..., num_actions]`.

    The largest of noisy values is too large on average; that of values whose noise is another is
    not: van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461, equation 4.
    """
    return q_of(target_q, tf.argmax(online_q, axis=-1, output_type=tf.int32))


class Differences(NamedTuple):
    """Temporal differences `[T, B]`, in rescaled units."""

    errors: tf.Tensor  # what Q lacks to its target
    targets: tf.Tensor  # constants to the gradient
    weights: tf.Tensor  # 1, and 0 where there is no transition


def temporal_differences(
    steps: Transitions, q: tf.Tensor, values: tf.Tensor, n_steps: int, epsilon: float
) -> Differences:
    """h(n-step return) - Q, of section 2.3.

    Args:
      steps: the transitions, `[T, B]`.
      q: `[T, B]`, the network's Q of the action that was taken.
      values: `[T + 1, B]`, what the network gives for the value of each row.
      n_steps: the most rewards in a return.
      epsilon: that of the rescaling h, which Q and values are outputs of.
    """
    returns = n_step_returns(steps, unrescale(values, epsilon), n_steps)
    targets = tf.stop_gradient(rescale(returns, epsilon))
    return Differences(targets - q, targets, tf.cast(steps.real, q.dtype))


def priorities(differences: Differences, eta: float) -> tf.Tensor:
    """eta max|error| + (1 - eta) mean|error| over each unroll's transitions, `[B]`; 0 without any.

    Section 2.3. That the size of an error says how much is to be learned is of Schaul et al. 2016,
    https://arxiv.org/abs/1511.05952, section 3.3; the replay raises it to the exponent there.
    """
    sizes = tf.stop_gradient(differences.weights * tf.abs(differences.errors))
    counts = tf.maximum(tf.reduce_sum(differences.weights, axis=0), 1.0)
    mean = tf.reduce_sum(sizes, axis=0) / counts
    return eta * tf.reduce_max(sizes, axis=0) + (1.0 - eta) * mean
