"""Fully connected and convolutional layers."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

RELU_GAIN = math.sqrt(2)  # keeps the scale of signals that a ReLU halves (He et al. 2015)


def orthogonal(rng: np.random.Generator, rows: int, columns: int, gain: float) -> np.ndarray:
    """A float32 matrix with orthonormal rows or columns, times `gain` (Saxe et al. 2013)."""
    tall = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(tall)
    q *= np.sign(np.diag(r))  # makes it uniform over all such matrices
    return np.asarray(gain * (q if rows >= columns else q.T), np.float32)


class Linear(tf.Module):
    """Maps `[N, input_size]` to `[N, output_size]`."""

    def __init__(
        self, input_size: int, output_size: int, gain: float, rng: np.random.Generator, name: str
    ) -> None:
        super().__init__(name=name)
        self._kernel = tf.Variable(
            orthogonal(rng, input_size, output_size, gain), name=f"{name}/kernel"
        )
        self._bias = tf.Variable(tf.zeros(output_size), name=f"{name}/bias")

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.bias_add(tf.matmul(inputs, self._kernel), self._bias)


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
        kernel = orthogonal(rng, size * size * input_channels, output_channels, gain)
        self._kernel = tf.Variable(
            kernel.reshape(size, size, input_channels, output_channels), name=f"{name}/kernel"
        )
        self._bias = tf.Variable(tf.zeros(output_channels), name=f"{name}/bias")
        self._stride = stride
        self._padding = padding

    def __call__(self, images: tf.Tensor, input_scale: float = 1.0) -> tf.Tensor:
        """Convolves `images` times `input_scale`; scaling the kernel instead is almost free."""
        kernel = self._kernel if input_scale == 1.0 else self._kernel * input_scale
        return tf.nn.bias_add(tf.nn.conv2d(images, kernel, self._stride, self._padding), self._bias)
