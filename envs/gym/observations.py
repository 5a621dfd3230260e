"""Observations as environments return them, checked and copied into arrays of their specs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import optree

from seed_rl.envs.gym.spaces import kind_of, leaf_spaces
from seed_rl.specs import ArraySpec, Nest, flatten, paths

_logger = logging.getLogger(__name__)


class WarnOnce:
    """Warns once of each subject."""

    def __init__(self) -> None:
        self._subjects: set[str] = set()

    def __call__(self, subject: str, message: str) -> None:
        if subject not in self._subjects:
            self._subjects.add(subject)
            _logger.warning(message)


class ObservationReader:
    """Reads observations of one space. What it returns shares no memory with them.

    Numbers of other dtypes are cast where no integer changes its value, with one warning. Whatever
    else does not fit raises a ValueError that begins with `who`, such as 'environment 3', and
    names the field.
    """

    def __init__(self, space: Any, spec: Nest, env_ids: Sequence[int], warn_once: WarnOnce) -> None:
        self._env_ids = env_ids
        self._structure = optree.tree_structure(spec)
        self._leaves: list[ArraySpec] = flatten(spec)
        self._spaces = leaf_spaces(space)
        self._paths: list[tuple[Any, ...]] = optree.tree_paths(spec)
        self._fields = [f"observation/{path}".rstrip("/") for path in paths(spec)]
        self._warn_once = warn_once
        # Networks look these up: elsewhere, bounds are often meant loosely.
        self._choices = [i for i, part in enumerate(self._spaces) if kind_of(part) != "Box"]
        self._dtypes = [np.dtype(leaf.dtype) for leaf in self._leaves]
        # For each leaf its path, shape, and the dtypes that may be copied without a look.
        self._fast = [
            (
                path,
                leaf.shape,
                (
                    np.dtype(leaf.dtype),
                    np.dtype(part.dtype if part.dtype == np.float64 else leaf.dtype),
                ),
            )
            for path, leaf, part in zip(self._paths, self._leaves, self._spaces, strict=True)
        ]
        # Shape and dtypes of an observation that is one array; no array is like this elsewhere.
        self.only_leaf: tuple[tuple[int, ...] | None, tuple[np.dtype, ...]] = (None, ())
        if isinstance(spec, ArraySpec):
            self.only_leaf = self._fast[0][1:]

    def columns(self, n: int) -> list[np.ndarray]:
        """New arrays `[n, ...]`, one a leaf, for the observations of a step."""
        return [
            np.empty((n, *leaf.shape), dtype)
            for leaf, dtype in zip(self._leaves, self._dtypes, strict=True)
        ]

    def nest(self, columns: list[np.ndarray]) -> Nest:
        """The observation of all environments. Raises ValueError where choices are out of range."""
        for leaf in self._choices:
            column, spec = columns[leaf].reshape(len(self._env_ids), -1), self._leaves[leaf]
            wrong = (column < spec.minimum) | (column > spec.maximum)
            if wrong.any():
                row = int(wrong.any(axis=1).argmax())
                raise ValueError(
                    f"environment {self._env_ids[row]}: {self._fields[leaf]}: wanted {spec}, as "
                    f"observation_space says, saw {column[row, wrong[row].argmax()]}"
                )
        if self.only_leaf[0] is not None:
            return columns[0]
        return optree.tree_unflatten(self._structure, columns)

    def read_row(self, who: str, observation: Any, columns: list[np.ndarray], i: int) -> None:
        """Copies the observation of one environment into the i-th row of the columns."""
        for leaf, (path, shape, dtypes) in enumerate(self._fast):
            value = self._value(who, leaf, observation) if path else observation
            if value.__class__ is np.ndarray and value.shape == shape and value.dtype in dtypes:
                columns[leaf][i] = value
            else:
                columns[leaf][i] = self._convert(who, leaf, value, self._leaves[leaf])

    def read_batch(self, who: str, observation: Any, n: int) -> Nest:
        """The observations of n environments, given as leaves `[n, ...]`."""
        leaves = []
        for leaf, (path, shape, dtypes) in enumerate(self._fast):
            value = self._value(who, leaf, observation) if path else observation
            if (
                value.__class__ is np.ndarray
                and value.shape == (n, *shape)
                and value.dtype in dtypes
            ):
                leaves.append(value.astype(self._dtypes[leaf], order="C"))
            else:
                spec = self._leaves[leaf]
                wanted = ArraySpec((n, *spec.shape), spec.dtype, spec.minimum, spec.maximum)
                leaves.append(self._convert(who, leaf, value, wanted))
        return self.nest(leaves)

    def _value(self, who: str, leaf: int, observation: Any) -> Any:
        value = observation
        try:
            for key in self._paths[leaf]:
                value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"{who}: {self._fields[leaf]}: wanted {self._leaves[leaf]}, saw {observation!r}"
            ) from error
        return value

    def _convert(self, who: str, leaf: int, value: Any, wanted: ArraySpec) -> np.ndarray:
        field = self._fields[leaf]
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ValueError(f"{who}: {field}: wanted {wanted}, saw {value!r}") from error
        if array.shape == wanted.shape:
            cast = _cast(array, wanted.dtype)
            if cast is not None:
                if array.dtype not in (cast.dtype, self._spaces[leaf].dtype):
                    self._warn_once(
                        field,
                        f"{field}: turning {array.dtype} into {wanted.dtype}; it is quicker if "
                        "step() and reset() return what observation_space says",
                    )
                return cast
        seen = f"{array.dtype.name}{list(array.shape)}"
        if array.size and array.dtype.kind in "biuf":
            seen += f" from {array.min()} to {array.max()}"
        raise ValueError(f"{who}: {field}: wanted {wanted}, as observation_space says, saw {seen}")


def _cast(array: np.ndarray, dtype: str) -> np.ndarray | None:
    """A copy of the numbers as `dtype`; None where integers would not keep their values."""
    if array.dtype == dtype:
        return array.copy()
    if array.dtype.kind not in "biuf":
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(dtype)
    return cast if cast.dtype.kind == "f" or np.array_equal(cast, array) else None
