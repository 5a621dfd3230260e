"""Torsos: what turns an observation into a vector of features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from seed_rl import factories, specs
from seed_rl.agents.networks import own, vectors
from seed_rl.agents.networks.layers import RELU_GAIN, Convolution, Linear
from seed_rl.specs import ArraySpec, Nest

_PIXEL_SCALE = 1 / 255
NAMES = ("shallow", "nature", "deep", "mlp")


class Torso(Protocol):
    """A tf.Module, whose variables are trained and saved. Its constructor makes all of them."""

    output_size: int

    def __call__(self, observation: Nest) -> tf.Tensor:
        """Features float32 `[N, output_size]` of observations `[N, ...]`."""


def make(
    name: str, observation: Nest, rng: np.random.Generator, precision: str = "float32"
) -> Torso:
    """The torso of this name, with 'auto' the one for such observations, or 'module:factory'.

    It computes in this precision, 'float32' or 'bfloat16'. Pixels are exact in both.
    """
    dtype = tf.as_dtype(precision)
    if factories.is_name(name):
        torso: Torso = own.load(name, observation, rng)
        return torso
    has_images = any(map(_is_image, specs.flatten(observation)))
    if name == "auto":
        name = "shallow" if has_images else "mlp"
    if name == "mlp":
        return Mlp(observation, (256, 256), dtype, rng)
    if name not in NAMES:
        raise ValueError(
            f"network {name}: wanted one of: auto, {', '.join(NAMES)}, or 'module:factory'"
        )
    if not has_images:
        raise ValueError(
            f"network {name}: wanted an image among the observations, uint8[height, width, "
            f"channels], saw {specs.describe(observation)}; --network=mlp takes vectors"
        )
    if isinstance(observation, ArraySpec):
        return _image_torso(name, observation, rng, dtype)
    return Composite(name, observation, dtype, rng)


def _image_torso(
    name: str, image: ArraySpec, rng: np.random.Generator, dtype: tf.DType
) -> ConvolutionStack | ResNet:
    if name == "shallow":
        return ConvolutionStack(name, image.shape, ((16, 8, 4), (32, 4, 2)), 256, dtype, rng)
    if name == "nature":
        layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
        return ConvolutionStack(name, image.shape, layers, 512, dtype, rng)
    return ResNet(image.shape, (16, 32, 32), 256, dtype, rng)


class ConvolutionStack(tf.Module):
    """Convolutions without padding and a fully connected layer, each with a ReLU.

    `shallow` is the small network of IMPALA (Espeholt et al. 2018), which is that of A3C (Mnih et
    al. 2016); `nature` is that of DQN (Mnih et al. 2015).
    """

    def __init__(
        self,
        name: str,
        image_shape: tuple[int, ...],
        layers: Sequence[tuple[int, int, int]],  # channels, kernel size and stride
        output_size: int,
        dtype: tf.DType,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(name=name)
        self.output_size = output_size
        self._dtype = dtype
        self._convolutions = []
        height, width, channels = image_shape
        for i, (next_channels, size, stride) in enumerate(layers):
            self._convolutions.append(
                Convolution(
                    channels, next_channels, size, stride, "VALID", RELU_GAIN, rng, f"conv_{i}"
                )
            )
            height, width = (height - size) // stride + 1, (width - size) // stride + 1
            channels = next_channels
            if height < 1 or width < 1:
                raise ValueError(
                    f"network {name}: an image of {image_shape[0]}x{image_shape[1]} is too small "
                    "for its convolutions; --network=deep takes any size"
                )
        self._flat_size = height * width * channels
        self._linear = Linear(self._flat_size, output_size, RELU_GAIN, rng, "linear")

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        x = tf.cast(observation, self._dtype)
        scale = _PIXEL_SCALE
        for convolution in self._convolutions:
            x = tf.nn.relu(convolution(x, scale))
            scale = 1.0
        x = tf.nn.relu(self._linear(tf.reshape(x, [-1, self._flat_size])))
        return tf.cast(x, tf.float32)


class ResidualBlock(tf.Module):
    """Adds to its input what two convolutions make of it."""

    def __init__(self, channels: int, gain: float, rng: np.random.Generator, name: str) -> None:
        super().__init__(name=name)
        self._first, self._second = (
            Convolution(channels, channels, 3, 1, "SAME", g, rng, f"{name}_conv_{i}")
            for i, g in enumerate((RELU_GAIN, gain))
        )

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x + self._second(tf.nn.relu(self._first(tf.nn.relu(x))))


class ResNet(tf.Module):
    """The large network of IMPALA (Espeholt et al. 2018, figure 3, right).

    Each section is a convolution, a max-pool that halves height and width, and 2 residual blocks.
    """

    def __init__(
        self,
        image_shape: tuple[int, ...],
        sections: Sequence[int],  # channels
        output_size: int,
        dtype: tf.DType,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(name="deep")
        self.output_size = output_size
        self._dtype = dtype
        self._entries = []
        self._blocks = []
        num_blocks = 2
        # All blocks together then add about as much variance as they find.
        block_gain = RELU_GAIN / (len(sections) * num_blocks) ** 0.5
        height, width, channels = image_shape
        for i, next_channels in enumerate(sections):
            entry = Convolution(channels, next_channels, 3, 1, "SAME", 1.0, rng, f"section_{i}")
            self._entries.append(entry)
            self._blocks.append(
                [
                    ResidualBlock(next_channels, block_gain, rng, f"section_{i}_block_{j}")
                    for j in range(num_blocks)
                ]
            )
            height, width, channels = (height + 1) // 2, (width + 1) // 2, next_channels
        self._flat_size = height * width * channels
        self._linear = Linear(self._flat_size, output_size, RELU_GAIN, rng, "linear")

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        x = tf.cast(observation, self._dtype)
        scale = _PIXEL_SCALE
        for entry, blocks in zip(self._entries, self._blocks, strict=True):
            x = tf.nn.max_pool2d(entry(x, scale), 3, 2, "SAME")
            scale = 1.0
            for block in blocks:
                x = block(x)
        x = tf.reshape(tf.nn.relu(x), [-1, self._flat_size])
        return tf.cast(tf.nn.relu(self._linear(x)), tf.float32)


class Mlp(tf.Module):
    """Fully connected layers with ReLUs, on all the vectors of the observation side by side.

    What is no vector of floats is made one: seed_rl.agents.networks.vectors.
    """

    def __init__(
        self,
        observation: Nest,
        layer_sizes: Sequence[int],
        dtype: tf.DType,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(name="mlp")
        self._dtype = dtype
        self._leaves: tuple[ArraySpec, ...] = tuple(specs.flatten(observation))
        if not self._leaves or any(
            _is_image(leaf) or not vectors.is_vector(leaf) for leaf in self._leaves
        ):
            raise ValueError(
                "network mlp: wanted observations of vectors, such as float32[size], saw "
                f"{specs.describe(observation)}; images, uint8[height, width, channels], are for "
                "--network=shallow, nature or deep"
            )
        self.output_size = layer_sizes[-1]
        self._layers = []
        size = sum(map(vectors.size, self._leaves))
        for i, next_size in enumerate(layer_sizes):
            self._layers.append(Linear(size, next_size, RELU_GAIN, rng, f"linear_{i}"))
            size = next_size

    def __call__(self, observation: Nest) -> tf.Tensor:
        parts = map(vectors.encode, specs.flatten(observation), self._leaves)
        x = tf.cast(tf.concat(list(parts), axis=-1), self._dtype)
        for layer in self._layers:
            x = tf.nn.relu(layer(x))
        return tf.cast(x, tf.float32)


class Composite(tf.Module):
    """A torso for each image of a nest and an Mlp for all else, their features side by side."""

    def __init__(
        self, name: str, observation: Nest, dtype: tf.DType, rng: np.random.Generator
    ) -> None:
        super().__init__(name="composite")
        leaves = specs.flatten(observation)
        self._images = frozenset(i for i, leaf in enumerate(leaves) if _is_image(leaf))
        images, rest = self._split(observation)
        self._torsos: list[Torso] = [_image_torso(name, image, rng, dtype) for image in images]
        if rest:
            self._torsos.append(Mlp(rest, (256, 256), dtype, rng))
        self.output_size = sum(torso.output_size for torso in self._torsos)

    def __call__(self, observation: Nest) -> tf.Tensor:
        images, rest = self._split(observation)
        parts = zip(self._torsos, [*images, rest] if rest else images, strict=True)
        return tf.concat([torso(part) for torso, part in parts], axis=-1)

    def _split(self, observation: Nest) -> tuple[list[Any], dict[str, Any]]:
        """The leaves that are images, and the rest by their names."""
        leaves, names = specs.flatten(observation), specs.paths(observation)
        rest = {names[i]: leaf for i, leaf in enumerate(leaves) if i not in self._images}
        return [leaves[i] for i in sorted(self._images)], rest


def _is_image(spec: ArraySpec) -> bool:
    """Ones and zeros are none, unless they are too many for a vector."""
    if spec.dtype != "uint8" or len(spec.shape) != 3:
        return False
    is_binary = spec.maximum is not None and spec.maximum <= 1
    return not (is_binary and vectors.is_vector(spec))
