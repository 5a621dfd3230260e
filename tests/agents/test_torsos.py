"""Which torso takes what, its size, and how it starts."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from seed_rl import specs
from seed_rl.agents.networks import torsos
from seed_rl.agents.networks.layers import random_kernel
from seed_rl.agents.vtrace.config import VtraceConfig
from seed_rl.specs import ArraySpec, Nest

IMAGE = ArraySpec((84, 84, 4), "uint8", 0, 255)
VECTORS = {
    "pose": (ArraySpec((3,), "float32"), ArraySpec((), "float64")),
    "a": ArraySpec((2,), "float32"),
}


def make(name: str, observation: Nest, seed: int = 0, precision: str = "float32") -> torsos.Torso:
    return torsos.make(name, observation, np.random.default_rng(seed), precision)


def num_weights(torso: torsos.Torso) -> int:
    return sum(int(np.prod(variable.shape)) for variable in torso.trainable_variables)


@pytest.mark.parametrize(
    ("name", "output_size", "weights"),
    [
        ("shallow", 256, 4112 + 8224 + (9 * 9 * 32 + 1) * 256),
        ("nature", 512, 8224 + 32832 + 36928 + (7 * 7 * 64 + 1) * 512),
        (
            "deep",
            256,
            (592 + 4 * 2320) + (4640 + 4 * 9248) + (9248 + 4 * 9248) + (11 * 11 * 32 + 1) * 256,
        ),
    ],
)
def test_size_on_atari(name: str, output_size: int, weights: int) -> None:
    torso = make(name, IMAGE)
    assert torso.output_size == output_size
    assert num_weights(torso) == weights
    features = torso(np.random.default_rng(0).integers(0, 256, (5, 84, 84, 4), np.uint8))
    assert features.shape == (5, output_size)
    assert features.dtype == tf.float32
    # Neither dying out nor blowing up at the start.
    assert 0.05 < np.sqrt(np.mean(np.square(features))) < 2


@pytest.mark.parametrize("shape", [(72, 96, 16), (37, 41, 1), (84, 84, 3)])
@pytest.mark.parametrize("name", ["shallow", "nature", "deep"])
def test_other_image_sizes(name: str, shape: tuple[int, ...]) -> None:
    torso = make(name, ArraySpec(shape, "uint8"))
    assert torso(np.zeros((2, *shape), np.uint8)).shape == (2, torso.output_size)


@pytest.mark.parametrize("name", ["shallow", "nature", "deep", "mlp"])
def test_bfloat16_is_float32_within_its_precision(name: str) -> None:
    """Weights, features and gradients are float32; what lies between has 8 bits."""
    rng = np.random.default_rng(0)
    if name == "mlp":
        spec: Nest = ArraySpec((6,), "float32")
        observation = rng.standard_normal((5, 6)).astype(np.float32)
    else:
        spec, observation = IMAGE, rng.integers(0, 256, (5, 84, 84, 4), np.uint8)
    features, gradients = [], []
    for precision in ("float32", "bfloat16"):
        torso = make(name, spec, precision=precision)
        weights = torso.trainable_variables
        assert {weight.dtype for weight in weights} == {tf.float32}
        with tf.GradientTape() as tape:
            output = torso(observation)
            loss = tf.reduce_sum(tf.square(output))
        assert output.dtype == tf.float32
        features.append(output.numpy())
        gradients.append([gradient.numpy() for gradient in tape.gradient(loss, weights)])
    difference = np.linalg.norm(features[0] - features[1]) / np.linalg.norm(features[0])
    assert 0 < difference < 0.03
    for one, other in zip(*gradients, strict=True):
        assert other.dtype == np.float32
        assert np.linalg.norm(one - other) < 0.1 * np.linalg.norm(one)


def test_pixels_are_scaled_to_1() -> None:
    """A white image is as an input of ones: the first convolution sums its kernel."""
    torso = make("nature", IMAGE)
    kernel = torso.trainable_variables[1]
    assert kernel.shape == (8, 8, 4, 32)
    convolution = torso._convolutions[0]
    white = tf.fill([1, 84, 84, 4], 255.0)
    seen = convolution(white, torsos._PIXEL_SCALE)[0, 0, 0]
    np.testing.assert_allclose(seen, tf.reduce_sum(kernel, axis=[0, 1, 2]), rtol=1e-4, atol=1e-4)


def test_every_torso_is_an_option() -> None:
    for name in ("auto", *torsos.NAMES, "module:factory"):
        assert VtraceConfig(network=name).network == name
    for name in ("wide", "module:", ":factory", ""):
        with pytest.raises(ValueError, match=f"wanted one of auto, {', '.join(torsos.NAMES)}, or"):
            VtraceConfig(network=name)


def test_auto_chooses_by_observation() -> None:
    assert make("auto", IMAGE).name == "shallow"
    assert make("auto", VECTORS).name == "mlp"


def test_mlp_takes_every_vector_of_a_nest() -> None:
    torso = make("mlp", VECTORS)
    rng = np.random.default_rng(0)
    observation = specs.map_nest(
        lambda spec: rng.standard_normal((4, *spec.shape)).astype(spec.dtype), VECTORS
    )
    before = torso(observation)
    assert before.shape == (4, torso.output_size)
    for i in range(3):
        leaves = specs.flatten(observation)
        leaves[i] = leaves[i] + 1
        after = torso(specs.unflatten(observation, leaves))
        assert np.abs(after - before).max() > 1e-3


@pytest.mark.parametrize(
    ("name", "observation", "message"),
    [
        (
            "shallow",
            ArraySpec((84, 84), "uint8"),
            r"uint8\[height, width, channels\], saw uint8\[84, 84\]",
        ),
        ("deep", ArraySpec((84, 84, 4), "float32"), r"saw float32\[84, 84, 4\]"),
        ("nature", ArraySpec((7,), "float32"), r"saw float32\[7\]; --network=mlp takes vectors"),
        ("shallow", VECTORS, r"wanted an image .* saw a float32\[2\], pose/0 float32\[3\], pose/1"),
        ("mlp", IMAGE, r"wanted .* float32\[size\], saw uint8\[84, 84, 4\]"),
        ("mlp", {"a": ArraySpec((3,), "int32"), "image": IMAGE}, r"saw a int32\[3\], image uint8"),
        ("auto", ArraySpec((84, 84, 3), "float32"), r"saw float32\[84, 84, 3\]"),
        (
            "nature",
            {"image": IMAGE, "deep": ArraySpec((99, 99), "float32")},
            r"saw float32\[99, 99",
        ),
        ("mlp", {}, "saw none"),
        ("shallow", ArraySpec((10, 10, 3), "uint8"), "10x10 is too small.*--network=deep"),
        ("wide", IMAGE, "network wide: wanted one of: auto, shallow, nature, deep, mlp"),
    ],
)
def test_unfit_observations_are_named(name: str, observation: Nest, message: str) -> None:
    """Case 25: the spec seen and the one wanted are both in the message."""
    with pytest.raises(ValueError, match=message):
        make(name, observation)


@pytest.mark.parametrize("name", ["shallow", "deep"])
def test_the_seed_fixes_the_weights(name: str) -> None:
    first, same, other = (make(name, IMAGE, seed).trainable_variables for seed in (1, 1, 2))
    for a, b in zip(first, same, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a.numpy() != b.numpy()).any() for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("shape", [(400, 30), (4, 5, 20, 30)])
def test_random_kernels_keep_the_scale(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    kernel = random_kernel(rng, shape, 3.0).reshape(400, 30)
    outputs = rng.standard_normal((1000, 400)) @ kernel
    assert kernel.dtype == np.float32
    assert np.std(outputs) == pytest.approx(3, rel=0.05)
