"""Specs of arrays, and nests of them as flat lists, names and JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from seed_rl import specs
from seed_rl.specs import ArraySpec, Nest
from seed_rl.types import StepInputs

NESTS: dict[str, Nest] = {
    "leaf": ArraySpec((84, 84), "uint8", 0, 255),
    "scalar": ArraySpec((), "float32"),
    "unbounded": ArraySpec((2, 3), "float64", -1.5, 2.5),
    "each its own": ArraySpec((2,), "float32", -1, 5, element_bounds=((-1.0, 1.0), (0.0, 5.0))),
    "packed": specs.packed_bits((72, 96, 16)),
    "dict": {"b": ArraySpec((1,), "int32"), "a": ArraySpec((2,), "bool")},
    "deep": ({"x": (ArraySpec((), "int64", 0, 3),)}, ArraySpec((4,), "float16"), ()),
    "empty": (),
}


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS.keys())
def test_json_and_back(nest: Nest) -> None:
    assert specs.from_json(json.loads(json.dumps(specs.to_json(nest)))) == nest
    assert specs.from_json(specs.to_json(nest)) == nest


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        [],
        {},
        {"list": []},
        {"array": {}},
        {"array": {"shape": 3, "dtype": "uint8"}},
        {"array": {"shape": ["wide"], "dtype": "uint8"}},
        {"array": {"shape": [None], "dtype": "uint8"}},
        {"array": {"shape": [-1], "dtype": "uint8"}},
        {"array": {"shape": [1], "dtype": "nonsense"}},
        {"array": {"shape": [1], "dtype": "object"}},
        {"array": {"shape": [1], "dtype": "uint8", "colour": "red"}},
        {"array": {"shape": [1], "dtype": "uint8", "maximum": "255"}},
        {"array": {"shape": [1], "dtype": "float32", "element_bounds": [[0.0, 1.0, 2.0]]}},
        {"array": {"shape": [1], "dtype": "float32", "element_bounds": [["0", "1"]]}},
        {"array": {"shape": [1], "dtype": "float32", "element_bounds": 3}},
        {"array": {"shape": [3], "dtype": "float32", "element_bounds": [[0.0, 1.0]]}},
        {"array": {"shape": [1], "dtype": "uint8", "bits": 8}},
        {"array": {"shape": [1], "dtype": "uint8", "bits": ["8"]}},
        {"array": {"shape": [1], "dtype": "uint8", "bits": [9]}},
        {"array": {"shape": [1], "dtype": "uint8"}, "tuple": []},
        {"tuple": {"0": {}}},
        {"dict": [1]},
    ],
)
def test_json_that_we_do_not_write_is_a_value_error(value: Any) -> None:
    """It comes over the network, from a learner of another version at worst."""
    with pytest.raises(ValueError):
        specs.from_json(value)


def test_only_nests_become_json() -> None:
    with pytest.raises(TypeError, match="list"):
        specs.to_json([ArraySpec((), "uint8")])


def test_order_of_leaves_does_not_depend_on_the_order_of_keys() -> None:
    one = {"b": 1, "a": (2, {"d": 3, "c": 4})}
    other = {"a": (2, {"c": 4, "d": 3}), "b": 1}
    assert specs.flatten(one) == specs.flatten(other) == [2, 4, 3, 1]
    assert specs.paths(one) == specs.paths(other) == ["a/0", "a/1/c", "a/1/d", "b"]
    assert specs.unflatten(one, [10, 20, 30, 40]) == {"a": (10, {"c": 20, "d": 30}), "b": 40}


def test_paths_of_a_bare_leaf_and_of_records() -> None:
    assert specs.paths(ArraySpec((), "uint8")) == [""]
    record = StepInputs(0, 1, {"image": 2}, 3)
    assert specs.paths(record) == ["step_type", "reward", "observation/image", "prev_action"]


def test_map_nest_keeps_the_structure() -> None:
    nest = {"a": 1, "b": (2, ())}
    assert specs.map_nest(lambda x, y: x + y, nest, nest) == {"a": 2, "b": (4, ())}


def test_dtype_is_normalised_and_bytes_are_counted() -> None:
    spec = ArraySpec((np.int64(3), 2), np.float32)  # type: ignore[arg-type]
    assert spec == ArraySpec((3, 2), "float32")
    assert hash(spec) == hash(ArraySpec((3, 2), "float32"))
    assert spec.num_bytes == 24
    assert ArraySpec((), "int64").num_bytes == 8
    zeros = spec.zeros(5)
    assert zeros.shape == (5, 3, 2)
    assert zeros.dtype == np.float32


@pytest.mark.parametrize(
    ("shape", "num_bytes"), [((3, 5), 2), ((4, 4), 2), ((), 1), ((0, 7), 0), ((72, 96, 16), 13824)]
)
def test_packed_bits_are_as_many_bytes_as_numpy_packs(
    shape: tuple[int, ...], num_bytes: int
) -> None:
    spec = specs.packed_bits(shape)
    assert spec.bits == shape
    assert spec.shape == np.packbits(np.ones(shape, np.uint8)).shape == (num_bytes,)
    assert spec.zeros(3).shape == (3, num_bytes)
    assert spec != ArraySpec((num_bytes,), "uint8")


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3,), "uint8"), ((2,), "int8"), ((1, 2), "uint8"), ((), "uint8")]
)
def test_bits_that_do_not_fit_the_bytes(shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(ValueError, match=r"bits \[3, 5\]: wanted to be packed in uint8\[2\]"):
        ArraySpec(shape, dtype, bits=(3, 5))


def test_num_choices() -> None:
    assert ArraySpec((), "int32", 0, 17).num_choices == 18
    for spec in (
        ArraySpec((), "int32"),
        ArraySpec((), "int32", 1, 4),
        ArraySpec((), "float32", 0, 1),
    ):
        with pytest.raises(ValueError, match="integers from 0"):
            _ = spec.num_choices


def test_text_of_a_spec() -> None:
    assert str(ArraySpec((84, 84), "uint8", 0, 255)) == "uint8[84, 84] in [0, 255]"
    assert str(ArraySpec((), "float32")) == "float32[]"
    assert str(specs.packed_bits((3, 5))) == "uint8[2] of bits[3, 5]"
    pairs = tuple((-i / 2, i / 2) for i in range(5))
    few = ArraySpec((2,), "float32", -1, 1, element_bounds=pairs[1:3])
    assert str(few) == "float32[2] in [-0.5, 0.5] x [-1, 1]"
    many = ArraySpec((5,), "float32", -2, 2, element_bounds=pairs)
    assert str(many) == "float32[5] in [-2, 2]"
    # One bound alone must not break an error message.
    assert str(ArraySpec((), "float32", maximum=3)) == "float32[]"
    assert str(ArraySpec((), "float32", minimum=-2)) == "float32[]"
