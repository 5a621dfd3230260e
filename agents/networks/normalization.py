"""Observations brought to a scale that networks learn from, by their running mean and variance."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from seed_rl import specs
from seed_rl.specs import ArraySpec, Nest

_CLIP = 10.0
_EPSILON = 1e-6  # added to the variance, so that what hardly ever changes is not blown up


class RunningMoments(tf.Module):
    """Mean and variance of all arrays seen so far, by the pairwise update of Chan et al. 1979.

    In float64: millions of small contributions add up.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(name="running_moments")
        self._count = _float64("count", ())
        self._mean = _float64("mean", shape)
        self._squares = _float64("squares", shape)  # the sum of squared distances from the mean

    def update(self, values: tf.Tensor, applied: tf.Tensor) -> None:
        """Adds arrays `[N, *shape]` where `applied`, a bool, holds and they are finite."""
        values = tf.cast(values, tf.float64)
        num_new = tf.cast(tf.shape(values)[0], tf.float64)
        mean = tf.reduce_mean(values, axis=0)
        squares = tf.reduce_sum(tf.square(values - mean), axis=0)
        count = self._count + num_new
        distance = mean - self._mean
        new_mean = self._mean + distance * (num_new / count)
        spread = tf.square(distance) * (self._count * num_new / count)
        new_squares = self._squares + squares + spread
        counts = applied & tf.reduce_all(tf.math.is_finite(new_mean + new_squares))
        for variable, value in (
            (self._count, count),
            (self._mean, new_mean),
            (self._squares, new_squares),
        ):
            variable.assign(tf.where(counts, value, variable))

    def normalize(self, values: tf.Tensor) -> tf.Tensor:
        """(values - mean) / deviation within +-10, float32; of nothing seen, the values within.

        What is not finite stays so.
        """
        variance = self._squares / tf.maximum(self._count, 1.0)
        scale = tf.where(self._count > 0, tf.math.rsqrt(variance + _EPSILON), 1.0)
        # In float64: large integers, such as times, differ in digits that float32 has not.
        values = tf.cast(tf.cast(values, tf.float64) - self._mean, tf.float32)
        clipped = tf.clip_by_value(values * tf.cast(scale, tf.float32), -_CLIP, _CLIP)
        # Clipping would hide what must not be learned from.
        return tf.where(tf.math.is_finite(values), clipped, values)


class Normalizer(tf.Module):
    """Normalizes the leaves of observations that `which` says; the others pass as they are.

    auto: floats, and integers of more than a byte, whose spec has no finite bounds. true: all
    floats, too. false: none.
    """

    def __init__(self, observation: Nest, which: str) -> None:
        super().__init__(name="normalizer")
        leaves = specs.flatten(observation)
        self._is_normalized = tuple(_is_normalized(leaf, which) for leaf in leaves)
        chosen = zip(leaves, self._is_normalized, strict=True)
        self._moments = [RunningMoments(leaf.shape) for leaf, is_chosen in chosen if is_chosen]

    def spec(self, observation: Nest) -> Nest:
        """What becomes of the spec."""
        return self._map(
            lambda leaf, _: ArraySpec(leaf.shape, "float32", -_CLIP, _CLIP), observation
        )

    def __call__(self, observation: Nest) -> Nest:
        """Of observations `[N, ...]`."""
        return self._map(lambda leaf, moments: moments.normalize(leaf), observation)

    def update(self, observation: Nest, applied: tf.Tensor) -> None:
        """Takes in observations `[N, ...]` where `applied`, a bool, holds."""

        def update(leaf: tf.Tensor, moments: RunningMoments) -> tf.Tensor:
            moments.update(leaf, applied)
            return leaf

        self._map(update, observation)

    def _map(self, function: Any, observation: Nest) -> Nest:
        moments = iter(self._moments)
        leaves = zip(specs.flatten(observation), self._is_normalized, strict=True)
        mapped = [function(leaf, next(moments)) if chosen else leaf for leaf, chosen in leaves]
        return specs.unflatten(observation, mapped)


def _is_normalized(spec: ArraySpec, which: str) -> bool:
    dtype = np.dtype(spec.dtype)
    is_bounded = (
        spec.minimum is not None
        and spec.maximum is not None
        and max(-spec.minimum, spec.maximum) < specs.LARGEST_BOUND
    )
    if which == "false" or (is_bounded and (which == "auto" or dtype.kind != "f")):
        return False
    return dtype.kind == "f" or (dtype.kind in "iu" and dtype.itemsize > 1)


def _float64(name: str, shape: tuple[int, ...]) -> tf.Variable:
    return tf.Variable(tf.zeros(shape, tf.float64), trainable=False, name=f"normalizer/{name}")
