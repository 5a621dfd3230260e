"""Packed observations, against numpy, and as the body of a network takes them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from seed_rl.agents.networks import bits
from seed_rl.agents.networks.body import Body
from seed_rl.agents.networks.config import NetworkConfig
from seed_rl.specs import ArraySpec, EnvironmentSpecs, packed_bits
from seed_rl.types import StepInputs, StepType

ACTION = ArraySpec((), "int32", 0, 18)
SIZES = [(72, 96, 16), (90, 120, 16), (108, 144, 16)]  # Football's maps


def random_images(n: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Images of 0 and 255, and the same packed."""
    images = np.random.default_rng(0).integers(2, size=(n, *shape), dtype=np.uint8) * 255
    return images, np.packbits(images.reshape(n, -1), axis=1)


@pytest.mark.parametrize("shape", [*SIZES, (3, 5), (8,), (1,), ()])
def test_unpack_is_the_inverse_of_packbits(shape: tuple[int, ...]) -> None:
    images, packed = random_images(3, shape)
    function = tf.function(
        lambda rows: bits.unpack(rows, shape),
        autograph=False,
        input_signature=[tf.TensorSpec([None, packed.shape[1]], tf.uint8)],
    )
    unpacked = function(packed)
    assert unpacked.dtype == tf.uint8
    assert np.array_equal(unpacked, images)
    assert function.get_concrete_function().structured_outputs.shape[1:] == shape


def test_every_byte() -> None:
    packed = np.arange(256, dtype=np.uint8)[:, np.newaxis]
    assert np.array_equal(bits.unpack(packed, (8,)), np.unpackbits(packed, axis=1) * 255)


def test_only_what_is_packed_is_unpacked() -> None:
    images, packed = random_images(2, (3, 5))
    speed = np.ones((2, 3), np.float32)
    spec = {"map": packed_bits((3, 5)), "speed": ArraySpec((3,), "float32")}
    assert bits.unpacked_spec(spec) == {
        "map": ArraySpec((3, 5), "uint8", 0, 255),
        "speed": spec["speed"],
    }
    seen = bits.unpack_all(spec, {"map": packed, "speed": speed})
    assert np.array_equal(seen["map"], images)
    assert seen["speed"] is speed


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("lstm_size", [0, 8])
def test_networks_see_packed_observations_as_if_they_were_not(
    shape: tuple[int, ...], lstm_size: int
) -> None:
    """The deep network of the paper, on all sizes of Football's maps."""
    images, packed = random_images(2, shape)

    def unroll(spec: ArraySpec, rows: np.ndarray) -> tf.Tensor:
        body = Body(
            EnvironmentSpecs(spec, ACTION),
            NetworkConfig("deep", lstm_size),
            np.random.default_rng(0),
        )
        inputs = StepInputs(
            tf.constant([[StepType.FIRST], [StepType.MID]], tf.uint8),
            tf.zeros([2, 1]),
            tf.constant(rows[:, np.newaxis]),
            tf.zeros([2, 1], tf.int32),
        )
        return body.unroll(inputs, body.initial_state(1))[0]

    features = unroll(packed_bits(shape), packed)
    assert features.shape == (2, 1, lstm_size or 256 + 19 + 1)
    assert np.ptp(features.numpy()) > 0
    np.testing.assert_allclose(features, unroll(ArraySpec(shape, "uint8"), images), rtol=1e-6)
