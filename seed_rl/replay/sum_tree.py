"""Draws indices in proportion to their values, which change all the time."""

from __future__ import annotations

import itertools

import numpy as np

# Children of a node. Each level costs a fixed number of numpy calls whatever the batch, and so
# does the root, which is searched once for all of it: both are wide, so that there are few levels.
# 100,000 values take one besides the root.
_FAN_OUT = 64
_ROOT_FAN_OUT = 4096


class SumTree:
    """`capacity` values of at least 0, and their sums over ever larger groups, all float64.

    A sum is computed from its parts whenever one of them changes, never corrected by the
    difference: rounding errors don't add up, however many changes there are.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # From the values to the root's children, each but these padded to whole groups with zeros.
        self._levels = [np.zeros(size) for size in _level_sizes(capacity)]
        # Sums of the root's first children, of its first two, and so on.
        self._root = np.zeros_like(self._levels[-1])

    @property
    def total(self) -> float:
        return float(self._root[-1])

    def get(self, indices: np.ndarray) -> np.ndarray:
        """The values, float64 `[n]`, at `indices` int64 `[n]`."""
        return self._levels[0][self._checked(indices)]

    def set(self, indices: np.ndarray, values: np.ndarray) -> None:
        """Sets values, float64 `[n]`, at `indices` int64 `[n]`. Of equal ones, the last counts.

        Raises ValueError for values below 0 or not finite, and then changes nothing.
        """
        nodes = self._checked(indices)
        values = np.asarray(values, np.float64)
        if not ((values >= 0) & np.isfinite(values)).all():
            raise ValueError(f"wanted finite values of at least 0, saw {values}")
        self._levels[0][nodes] = values
        for parts, sums in itertools.pairwise(self._levels):
            groups = parts.reshape(-1, _FAN_OUT)
            nodes = nodes // _FAN_OUT
            if len(nodes) < len(groups):
                sums[nodes] = groups[nodes].sum(axis=1)
            else:  # many changes have their groups in common
                np.sum(groups, axis=1, out=sums[: len(groups)])
        np.cumsum(self._levels[-1], out=self._root)

    def find(self, masses: np.ndarray) -> np.ndarray:
        """For each mass, the first index up to which, itself included, values sum to more.

        `masses` float64 `[n]` from 0 to `total`, at which it is the last index that matters;
        returns int64 `[n]`. Values there are above 0, whatever the rounding. Raises ValueError
        where all values are 0, and for masses that are negative or not numbers.
        """
        if self.total <= 0:
            raise ValueError("there is nothing to find: all values are 0")
        masses = np.asarray(masses, np.float64)
        if not (masses >= 0).all():
            raise ValueError(f"wanted masses from 0 to {self.total}, saw {masses}")
        # The first sum above the mass is also above the one before, so that its part is not 0.
        masses = np.minimum(masses, np.nextafter(self.total, 0))
        nodes = self._root.searchsorted(masses, side="right")
        masses = masses - np.where(nodes > 0, self._root[nodes - 1], 0)
        columns = np.arange(len(masses))
        for parts in reversed(self._levels[:-1]):
            sums = parts.reshape(-1, _FAN_OUT)[nodes].cumsum(axis=1)
            # The group's sum may have been rounded up, relative to its parts' one by one.
            masses = np.minimum(masses, np.nextafter(sums[:, -1], 0))
            children = (sums > masses[:, None]).argmax(axis=1)
            masses = masses - np.where(children > 0, sums[columns, children - 1], 0)
            nodes = nodes * _FAN_OUT + children
        return nodes

    def _checked(self, indices: np.ndarray) -> np.ndarray:
        indices = np.asarray(indices, np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < self._capacity:
            raise IndexError(f"wanted indices in [0, {self._capacity}), saw {indices}")
        return indices


def tree_bytes(capacity: int) -> int:
    """Memory that a SumTree takes."""
    sizes = _level_sizes(capacity)
    return 8 * (sum(sizes) + sizes[-1])


def _level_sizes(capacity: int) -> list[int]:
    sizes: list[int] = []
    size = capacity
    while size > _ROOT_FAN_OUT:
        groups = -(-size // _FAN_OUT)
        sizes.append(groups * _FAN_OUT)
        size = groups
    return [*sizes, size]
