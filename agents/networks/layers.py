"""Fully connected and convolutional layers.

Weights are float32; a layer computes in the dtype of what it is given, and returns that.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

RELU_GAIN = math.sqrt(2)  # keeps the scale of signals that a ReLU halves (He et al. 2015)


def random_kernel(
    rng: np.random.Generator, shape: tuple[int, ...], gain: float = 1.0
) -> np.ndarray:
    """Float32 normal numbers that give outputs `gain` times the scale of the inputs.

    The last dimension of `shape` is that of the outputs.
    """
    num_inputs = math.prod(shape[:-1])
    return np.float32(gain / math.sqrt(num_inputs)) * rng.standard_normal(shape, np.float32)


class Linear(tf.Module):
    """Maps `[N, input_size]` to `[N, output_size]`."""

    def __init__(
        self, input_size: int, output_size: int, gain: float, rng: np.random.Generator, name: str
    ) -> None:
        super().__init__(name=name)
        kernel = random_kernel(rng, (input_size, output_size), gain)
        self._kernel = tf.Variable(kernel, name=f"{name}/kernel")
        self._bias = tf.Variable(tf.zeros(output_size), name=f"{name}/bias")

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        return _add_bias(tf.matmul(inputs, tf.cast(self._kernel, inputs.dtype)), self._bias)


class Convolution(tf.Module):
    """Maps images `[N, H, W, input_channels]` to `[N, H', W', output_channels]`."""

    def __init__(
        self,
        input_channels: int,
        output_channels: int,
        size: int,
        stride: int,
        padding: str,
        gain: float,
        rng: np.random.Generator,
        name: str,
    ) -> None:
        super().__init__(name=name)
        kernel = random_kernel(rng, (size, size, input_channels, output_channels), gain)
        self._kernel = tf.Variable(kernel, name=f"{name}/kernel")
        self._bias = tf.Variable(tf.zeros(output_channels), name=f"{name}/bias")
        self._stride = stride
        self._padding = padding

    def __call__(self, images: tf.Tensor, input_scale: float = 1.0) -> tf.Tensor:
        """Convolves `images` times `input_scale`; scaling the kernel instead is almost free."""
        kernel = self._kernel if input_scale == 1.0 else self._kernel * input_scale
        kernel = tf.cast(kernel, images.dtype)
        return _add_bias(tf.nn.conv2d(images, kernel, self._stride, self._padding), self._bias)


def _add_bias(x: tf.Tensor, bias: tf.Variable) -> tf.Tensor:
    """`x` `[..., n]` plus the bias `[n]`, in the dtype of `x`."""
    if x.dtype == tf.float32:
        return tf.nn.bias_add(x, bias)
    return _add_bias_with_exact_gradient(x, tf.cast(bias, x.dtype))


@tf.custom_gradient
def _add_bias_with_exact_gradient(x: tf.Tensor, bias: tf.Tensor) -> Any:
    def gradient(to_output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # TensorFlow's own adds up thousands of numbers in 8 bits, where it gets stuck at a few
        # hundred times their size. A matrix product adds up in float32.
        rows = tf.reshape(to_output, [-1, bias.shape[0]])
        ones = tf.ones([1, tf.shape(rows)[0]], rows.dtype)
        return to_output, tf.matmul(ones, rows)[0]

    return tf.nn.bias_add(x, bias), gradient
