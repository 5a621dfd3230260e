"""Observations that came packed, eight values to a byte, as networks see them."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from seed_rl import specs
from seed_rl.specs import ArraySpec, Nest

# Of each byte, the eight it unpacks to as one integer: GPUs have a kernel to look these up, as they
# have not for bytes, and on a CPU it takes a third of the time of shifting bits.
_EIGHTS = (np.unpackbits(np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=1) * 255).view(
    np.int64
)[:, 0]


def unpack(packed: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    """Packed uint8 `[N, num_bytes]` to uint8 `[N, *shape]`, 255 for each 1: `np.unpackbits`."""
    unpacked = tf.bitcast(tf.gather(_EIGHTS, tf.cast(packed, tf.int32)), tf.uint8)
    unpacked = tf.reshape(unpacked, [-1, 8 * packed.shape[1]])
    num_bits = math.prod(shape)
    if num_bits < unpacked.shape[1]:  # the last byte is not full
        unpacked = unpacked[:, :num_bits]
    return tf.reshape(unpacked, [-1, *shape])


def unpacked_spec(observation: Nest) -> Nest:
    """The specs of what `unpack_all` makes of an observation."""
    return specs.map_nest(
        lambda spec: spec if spec.bits is None else ArraySpec(spec.bits, "uint8", 0, 255),
        observation,
    )


def unpack_all(spec: Nest, observation: Nest) -> Nest:
    """The observation `[N, ...]`, unpacked where its spec says that it is packed."""
    return specs.map_nest(
        lambda leaf, values: values if leaf.bits is None else unpack(values, leaf.bits),
        spec,
        observation,
    )
