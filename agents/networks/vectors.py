"""Arrays of observations that are no images, as vectors of float32."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from seed_rl.specs import ArraySpec

# No vectors are made of larger arrays with more than one dimension, nor larger ones of integers.
_MOST_INPUTS = 4096


def is_vector(spec: ArraySpec) -> bool:
    """Whether there is an encoding for such arrays."""
    return len(spec.shape) <= 1 or math.prod(spec.shape) <= _MOST_INPUTS


def size(spec: ArraySpec) -> int:
    """The number of floats that encode one array."""
    return math.prod(spec.shape) * (_num_values(spec) if _is_one_hot(spec) else 1)


def encode(values: tf.Tensor, spec: ArraySpec) -> tf.Tensor:
    """Float32 `[N, size]` of arrays `[N, *shape]`.

    Floats, bools and integers without bounds stay the numbers that they are, but floats that have
    bounds of their own each are scaled from these to [-1, 1]. Integers with bounds become one-hot;
    where that would take too many floats, they are scaled to [-1, 1] instead. Arrays of integers
    with two values become 0 and 1.
    """
    if _is_one_hot(spec):
        assert spec.minimum is not None
        index = tf.cast(values, tf.int32) - int(spec.minimum)
        encoded = tf.one_hot(index, _num_values(spec))
    else:
        encoded = tf.cast(values, tf.float32)
        if _is_bounded_integer(spec):
            assert spec.minimum is not None
            encoded -= spec.minimum
            if _num_values(spec) > 2:
                encoded = encoded * (2 / (_num_values(spec) - 1)) - 1.0
        elif spec.element_bounds is not None:
            low, high = np.reshape(np.transpose(spec.element_bounds), (2, *spec.shape))
            reach = (high - low) / 2
            scale = np.divide(1, reach, out=np.zeros_like(reach), where=reach > 0)
            encoded = (encoded - np.float32((low + high) / 2)) * np.float32(scale)
    return tf.reshape(encoded, [-1, size(spec)])


def _is_bounded_integer(spec: ArraySpec) -> bool:
    has_bounds = spec.minimum is not None and spec.maximum is not None
    return has_bounds and np.dtype(spec.dtype).kind in "iu"


def _num_values(spec: ArraySpec) -> int:
    assert spec.minimum is not None
    assert spec.maximum is not None
    return int(spec.maximum) - int(spec.minimum) + 1


def _is_one_hot(spec: ArraySpec) -> bool:
    if not _is_bounded_integer(spec):
        return False
    num_values = _num_values(spec)
    is_binary = num_values == 2 and spec.shape != ()
    return not is_binary and math.prod(spec.shape) * num_values <= _MOST_INPUTS
