"""Bounded numbers: tanh of normal ones."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import tensorflow as tf

from seed_rl.specs import Nest

# Bounds of the normal distribution. Of actions from means farther out float32 keeps too few digits
# to tell them apart, and the gradient of the action is lost. With a deviation of about 0.9 actions
# are as uniform as can be; larger ones heap them up at both ends.
#
# A network's output may change by 0.2 in one update, and a policy must not change by more than its
# deviation before its actions are learned from. So deviations are not small, and means change less
# than the output. Where a number had to be hit, a least deviation of 0.1 and a gain of 0.1 learned
# it at all learning rates tried: 5e-4, 1e-3 and 2e-3. With 0.05 for the first, the highest of them
# failed; with 1 for the second, all but the lowest.
_LARGEST_MEAN = 4.0
_MEAN_GAIN = 0.1
_SMALLEST_SCALE = 0.1
_LARGEST_SCALE = 1.0
_FIRST_SCALE = 0.6  # where its parameter is 0

# The largest float32 below 1. At the bounds themselves there is no density; actions there count as
# this one, which is 8.66 before tanh.
_LARGEST_ACTION = np.float32(1 - 2**-24)

# Gauss-Hermite quadrature: expectations under the standard normal distribution, exact for
# polynomials of degree 2 n - 1.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(20)
_WEIGHTS = _WEIGHTS / math.sqrt(2 * math.pi)

_LOG_SCALES = math.log(_SMALLEST_SCALE), math.log(_LARGEST_SCALE)
_SHARE = (math.log(_FIRST_SCALE) - _LOG_SCALES[0]) / (_LOG_SCALES[1] - _LOG_SCALES[0])
_OFFSET = math.log(_SHARE / (1 - _SHARE))
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


@dataclasses.dataclass(frozen=True)
class TanhNormal:
    """Numbers in [-1, 1], float32 `[..., *shape]`, each tanh of a normal one of its own.

    The parameters are `[..., 2 n]` for the n numbers of `shape`: first what the means, then what
    the standard deviations of the normal numbers are made of. Both stay within bounds whatever the
    parameters are: means within +-4, by 4 tanh(x / 40), and deviations from 0.1 to 1, whose
    logarithm is a sigmoid of the parameter. Zeros make a mean of 0 and a deviation of 0.6.

    Samples are never exactly -1 or 1. The `log_prob` of such an action is that of the float32 next
    to it.
    """

    shape: tuple[int, ...]
    num_choices = 0  # numbers can't be masked

    @property
    def num_parameters(self) -> int:
        return 2 * math.prod(self.shape)

    def masked(self, parameters: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        return parameters

    def log_prob(self, parameters: tf.Tensor, action: Nest) -> tf.Tensor:
        """The logarithm of the density at each action, `[...]`.

        Actions are constants to the gradient.
        """
        mean, log_scale = _normals(parameters)
        action = tf.reshape(action, tf.shape(mean))
        action = tf.clip_by_value(tf.stop_gradient(action), -_LARGEST_ACTION, _LARGEST_ACTION)
        # 1 - |action| has no rounding error near the bounds, unlike 1 - action^2.
        log_above, log_below = tf.math.log1p(-action), tf.math.log1p(action)
        number = 0.5 * (log_below - log_above)  # the inverse of tanh
        error = (number - mean) * tf.exp(-log_scale)
        log_normal = -0.5 * tf.square(error) - log_scale - _HALF_LOG_TWO_PI
        return tf.reduce_sum(log_normal - log_above - log_below, axis=-1)

    def entropy(self, parameters: tf.Tensor) -> tf.Tensor:
        """In nats, `[...]`: negative where the density is high.

        That of the normal numbers plus the mean of log tanh', which has no closed form and is
        integrated by quadrature. The error is below 1e-5 for each number.
        """
        mean, log_scale = _normals(parameters)
        nodes = tf.constant(_NODES, tf.float32)
        number = mean[..., tf.newaxis] + tf.exp(log_scale)[..., tf.newaxis] * nodes
        slope = 2.0 * (math.log(2) - tf.abs(number) - tf.math.softplus(-2.0 * tf.abs(number)))
        mean_slope = tf.reduce_sum(slope * tf.constant(_WEIGHTS, tf.float32), axis=-1)
        return tf.reduce_sum(log_scale + (0.5 + _HALF_LOG_TWO_PI) + mean_slope, axis=-1)

    def kl(self, parameters: tf.Tensor, other_parameters: tf.Tensor) -> tf.Tensor:
        """KL(this || other) in nats, `[...]`: that of the normal numbers, as tanh is one-to-one."""
        mean, log_scale = _normals(parameters)
        other_mean, other_log_scale = _normals(other_parameters)
        log_ratio = log_scale - other_log_scale
        distance = tf.square((mean - other_mean) * tf.exp(-other_log_scale))
        # e^2x - 1 - 2x, without the loss of all digits of a small difference.
        spread = tf.math.expm1(2.0 * log_ratio) - 2.0 * log_ratio
        return 0.5 * tf.reduce_sum(spread + distance, axis=-1)

    def sample(self, parameters: tf.Tensor, seed: tf.Tensor) -> Nest:
        """Actions drawn at random, the same ones for the same `seed`, int32 `[2]`."""
        mean, log_scale = _normals(parameters)
        noise = tf.random.stateless_normal(tf.shape(mean), seed)
        return self._action(mean + tf.exp(log_scale) * noise)

    def mode(self, parameters: tf.Tensor) -> Nest:
        """The actions that are as often exceeded as not: tanh of the means."""
        return self._action(_normals(parameters)[0])

    def _action(self, number: tf.Tensor) -> tf.Tensor:
        action = tf.clip_by_value(tf.tanh(number), -_LARGEST_ACTION, _LARGEST_ACTION)
        # An action even while a network is broken.
        action = tf.where(tf.math.is_nan(action), tf.zeros_like(action), action)
        return tf.reshape(action, tf.concat([tf.shape(number)[:-1], self.shape], 0))


def _normals(parameters: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Means and logarithms of the standard deviations, each `[..., n]`."""
    mean, scale = tf.split(parameters, 2, axis=-1)
    lowest, highest = _LOG_SCALES
    log_scale = lowest + (highest - lowest) * tf.sigmoid(scale + _OFFSET)
    return _LARGEST_MEAN * tf.tanh(mean * (_MEAN_GAIN / _LARGEST_MEAN)), log_scale
