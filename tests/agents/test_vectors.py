"""How what is no image becomes a vector."""

from __future__ import annotations

import numpy as np
import pytest

from seed_rl.agents.networks import vectors
from seed_rl.specs import ArraySpec


def encode(spec: ArraySpec, *values: object) -> np.ndarray:
    encoded = vectors.encode(np.array(values, spec.dtype), spec).numpy()
    assert encoded.dtype == np.float32
    assert encoded.shape == (len(values), vectors.size(spec))
    return encoded


def test_discrete_is_one_hot_from_its_start() -> None:
    spec = ArraySpec((), "int32", -1, 2)
    np.testing.assert_array_equal(encode(spec, -1, 2, 0), np.eye(4)[[0, 3, 1]])
    np.testing.assert_array_equal(encode(ArraySpec((), "int64", 0, 1), 1, 0), np.eye(2)[[1, 0]])


def test_multi_discrete_is_one_hot_each() -> None:
    spec = ArraySpec((2,), "int32", 0, 3)
    np.testing.assert_array_equal(encode(spec, [1, 3]), [[0, 1, 0, 0, 0, 0, 0, 1]])


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_binaries_are_0_and_1(dtype: str) -> None:
    np.testing.assert_array_equal(encode(ArraySpec((3,), dtype, 0, 1), [1, 0, 1]), [[1, 0, 1]])
    np.testing.assert_array_equal(encode(ArraySpec((2,), "bool"), [True, False]), [[1, 0]])


def test_many_values_are_scaled() -> None:
    """The memory of an Atari machine, and a counter."""
    spec = ArraySpec((128,), "uint8", 0, 255)
    encoded = encode(spec, [0, 255, *[51] * 126])
    np.testing.assert_allclose(encoded[0, :3], [-1, 1, -0.6], rtol=1e-6)
    counter = ArraySpec((), "int64", 100, 1_000_100)
    np.testing.assert_allclose(encode(counter, 100, 500_100, 1_000_100), [[-1], [0], [1]])


def test_floats_and_unbounded_integers_stay() -> None:
    np.testing.assert_array_equal(
        encode(ArraySpec((2, 2), "float64", -9, 9), [[1, 2], [3, -4]]), [[1, 2, 3, -4]]
    )
    np.testing.assert_array_equal(encode(ArraySpec((1,), "int32"), [70_000]), [[70_000]])


def test_floats_with_bounds_of_their_own_are_scaled_each() -> None:
    """What lies between -0.07 and 0.07 would be nothing beside what lies between -8 and 8."""
    bounds = ((-8.0, 8.0), (-0.07, 0.07), (1000.0, 1001.0), (5.0, 5.0))
    for shape in ((4,), (2, 2)):
        spec = ArraySpec(shape, "float32", -8, 1001, element_bounds=bounds)
        rows = [[-8, -0.07, 1000, 5], [8, 0.07, 1001, 5], [4, 0, 1000.25, 5], [16, 0.14, 1002, 5]]
        encoded = encode(spec, *np.reshape(rows, (4, *shape)))
        wanted = [[-1, -1, -1, 0], [1, 1, 1, 0], [0.5, 0, -0.5, 0], [2, 2, 3, 0]]
        np.testing.assert_allclose(encoded, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        (ArraySpec((10_000,), "float32"), True),
        (ArraySpec((8, 8, 12), "int8", 0, 1), True),
        (ArraySpec((84, 84), "float32"), False),
        (ArraySpec((84, 84, 3), "float32"), False),
    ],
)
def test_large_arrays_are_no_vectors(spec: ArraySpec, fits: bool) -> None:
    assert vectors.is_vector(spec) == fits
