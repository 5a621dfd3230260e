"""What arrays look like: shapes, dtypes and bounds of observations, actions and states.

A *nest* is a tree of dicts and tuples with arrays (or ArraySpecs) as leaves. Dicts are ordered by
key, so that two processes flatten the same nest to the same list.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any

import numpy as np
import optree

# dict[str, Nest] | tuple[Nest, ...] | leaf. A recursive alias would have to name the leaf too.
Nest = Any

# Spaces that know no bounds often say the largest float, or some other large number.
LARGEST_BOUND = 1e10
_MOST_BOUNDS_TOLD = 4  # of single elements, in messages


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one array, without its leading time or batch dimensions.

    An array of integers with both bounds set and minimum 0 is a choice among `maximum + 1`.

    Where `bits` is set, the array is uint8 `[ceil(prod(bits) / 8)]` and packs an array of two
    values, eight to a byte, the first in the highest bit (`np.packbits`). So it travels and is
    kept; networks unpack it, and see uint8 of shape `bits` with 255 for each 1.

    `element_bounds` are lowest and highest of each element, in C order, where these differ;
    `minimum` and `maximum` are then those of all elements together.
    """

    shape: tuple[int, ...]
    dtype: str
    minimum: float | None = None
    maximum: float | None = None
    bits: tuple[int, ...] | None = None
    element_bounds: tuple[tuple[float, float], ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype).name)
        if min(self.shape, default=0) < 0:
            raise ValueError(f"shape {list(self.shape)}: wanted sizes of at least 0")
        if self.bits is not None:
            object.__setattr__(self, "bits", tuple(int(size) for size in self.bits))
            self._check_bits(self.bits)
        if self.element_bounds is not None and len(self.element_bounds) != math.prod(self.shape):
            raise ValueError(
                f"element_bounds: wanted {math.prod(self.shape)} pairs for shape "
                f"{list(self.shape)}, saw {len(self.element_bounds)}"
            )

    def _check_bits(self, bits: tuple[int, ...]) -> None:
        if min(bits, default=0) < 0:
            raise ValueError(f"bits {list(bits)}: wanted sizes of at least 0")
        shape = (-(-math.prod(bits) // 8),)
        if (self.dtype, self.shape) != ("uint8", shape):
            raise ValueError(
                f"bits {list(bits)}: wanted to be packed in uint8{list(shape)}, "
                f"saw {self.dtype}{list(self.shape)}"
            )

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def num_choices(self) -> int:
        """Number of values of a discrete action. Raises ValueError where the spec is not one."""
        if self.maximum is None or self.minimum != 0 or np.dtype(self.dtype).kind not in "iu":
            raise ValueError(f"wanted integers from 0 to a maximum, saw {self}")
        return int(self.maximum) + 1

    def zeros(self, *leading: int) -> np.ndarray:
        return np.zeros((*leading, *self.shape), self.dtype)

    def __str__(self) -> str:
        text = f"{self.dtype}{list(self.shape)}"
        if self.bits is not None:
            text += f" of bits{list(self.bits)}"
        if self.minimum is None or self.maximum is None:
            return text
        bounds = self.element_bounds
        if bounds is None or len(bounds) > _MOST_BOUNDS_TOLD:
            bounds = ((self.minimum, self.maximum),)
        return f"{text} in {' x '.join(f'[{low:g}, {high:g}]' for low, high in bounds)}"


@dataclasses.dataclass(frozen=True)
class EnvironmentSpecs:
    """Nests of ArraySpecs of one environment's observation and action."""

    observation: Nest
    action: Nest


def is_choice(nest: Nest) -> bool:
    """Whether it is the spec of one integer from 0 to a maximum."""
    return (
        isinstance(nest, ArraySpec)
        and nest.shape == ()
        and np.dtype(nest.dtype).kind in "iu"
        and nest.minimum == 0
        and nest.maximum is not None
    )


def packed_bits(shape: tuple[int, ...]) -> ArraySpec:
    """The spec of an array of this shape that has two values, packed as `ArraySpec.bits` tells."""
    return ArraySpec((-(-math.prod(shape) // 8),), "uint8", bits=shape)


def flatten(nest: Nest) -> list[Any]:
    return optree.tree_leaves(nest)


def unflatten(structure: Nest, leaves: list[Any]) -> Nest:
    """The nest shaped as `structure`, which may hold any leaves, with these leaves."""
    return optree.tree_unflatten(optree.tree_structure(structure), leaves)


def map_nest(function: Any, nest: Nest, *others: Nest) -> Nest:
    return optree.tree_map(function, nest, *others)


def paths(nest: Nest) -> list[str]:
    """Names of the leaves in the order of `flatten`: 'image', 'pose/0'; '' for a bare leaf.

    The parts of named tuples go by their names.
    """
    return [
        "/".join(
            str(entry.field if isinstance(entry, optree.NamedTupleEntry) else entry.entry)
            for entry in accessor
        )
        for accessor in optree.tree_accessors(nest)
    ]


def describe(nest: Nest) -> str:
    """The leaves with their names, for messages; 'none' where there are none."""
    named = zip(paths(nest), flatten(nest), strict=True)
    return ", ".join(f"{path} {leaf}".strip() for path, leaf in named) or "none"


def to_json(nest: Nest) -> Any:
    """The nest of ArraySpecs as plain JSON values."""
    if isinstance(nest, ArraySpec):
        fields = {"shape": list(nest.shape), "dtype": nest.dtype}
        bits, pairs = nest.bits, nest.element_bounds
        others = {
            "minimum": nest.minimum,
            "maximum": nest.maximum,
            "bits": None if bits is None else list(bits),
            "element_bounds": None if pairs is None else list(map(list, pairs)),
        }
        return {"array": fields | {k: v for k, v in others.items() if v is not None}}
    if isinstance(nest, dict):
        return {"dict": {key: to_json(nest[key]) for key in sorted(nest)}}
    if isinstance(nest, tuple):
        return {"tuple": [to_json(part) for part in nest]}
    raise TypeError(f"wanted a dict, a tuple or an ArraySpec, saw {type(nest).__name__}")


def from_json(value: Any) -> Nest:
    """The inverse of `to_json`. Raises ValueError on anything that it does not write."""
    if isinstance(value, dict) and len(value) == 1:
        match value:
            case {"array": {"shape": list(shape), "dtype": str(dtype), **others}}:
                return _spec_from_json(
                    shape,
                    dtype,
                    others.pop("bits", None),
                    others.pop("element_bounds", None),
                    others,
                )
            case {"dict": dict(parts)}:
                return {key: from_json(part) for key, part in parts.items()}
            case {"tuple": list(parts)}:
                return tuple(from_json(part) for part in parts)
    raise ValueError(f"wanted 'array', 'dict' or 'tuple', saw {value!r}")


def _spec_from_json(
    shape: list[Any], dtype: str, bits: Any, pairs: Any, bounds: dict[Any, Any]
) -> ArraySpec:
    for sizes in (shape, bits):
        if sizes is not None and not (
            isinstance(sizes, list) and all(type(size) is int for size in sizes)
        ):
            raise ValueError(f"wanted sizes as integers, saw {sizes}")
    if not (bounds.keys() <= {"minimum", "maximum"}) or not all(
        type(bound) in (int, float) for bound in bounds.values()
    ):
        raise ValueError(f"wanted at most a minimum and a maximum, as numbers, saw {bounds}")
    if any(type(bound) is int and abs(bound) > sys.float_info.max for bound in bounds.values()):
        raise ValueError("wanted bounds that are floats, saw larger ones")
    if pairs is not None and not (
        isinstance(pairs, list)
        and all(
            isinstance(pair, list) and [type(part) for part in pair] == [float, float]
            for pair in pairs
        )
    ):
        raise ValueError(f"wanted pairs of floats as element_bounds, saw {pairs}")
    kind: str
    try:
        kind = np.dtype(dtype).kind
    except (TypeError, SyntaxError):
        kind = "unknown"
    if kind not in "biuf":
        raise ValueError(f"wanted a dtype of bools, integers or floats, saw {dtype!r}")
    return ArraySpec(
        tuple(shape),
        dtype,
        bits=None if bits is None else tuple(bits),
        element_bounds=None if pairs is None else tuple(map(tuple, pairs)),
        **bounds,
    )
