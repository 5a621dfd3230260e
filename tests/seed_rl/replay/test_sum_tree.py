"""Draws in proportion to values: the right index at every mass, whatever was set before."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seed_rl.replay.sum_tree import SumTree, tree_bytes


def make_tree(values: np.ndarray) -> SumTree:
    tree = SumTree(len(values))
    tree.set(np.arange(len(values)), values)
    return tree


def random_values(rng: np.random.Generator, capacity: int) -> np.ndarray:
    """Whole numbers, so that their sums are exact; a third are 0, but not all."""
    values = rng.integers(1, 100, capacity).astype(float)
    values[rng.random(capacity) < 1 / 3] = 0
    values[rng.integers(capacity)] = 7
    return values


def critical_chi_square(freedom: int) -> float:
    """What a chi-square exceeds once in 10,000 times, after Wilson and Hilferty."""
    normal = 3.719
    return freedom * (1 - 2 / (9 * freedom) + normal * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 100, 4096, 4097, 5000, 300_000])
def test_masses_find_their_index(capacity: int) -> None:
    """Case 81: the ends of each index's interval, and its middle."""
    rng = np.random.default_rng(capacity)
    values = random_values(rng, capacity)
    tree = make_tree(values)
    assert tree.total == values.sum()
    ends = np.cumsum(values)
    starts = ends - values
    filled = np.flatnonzero(values)
    some = np.arange(0, len(filled), max(len(filled) // 3000, 1))
    for masses in (starts, starts + values / 2, ends - 0.25):
        np.testing.assert_array_equal(tree.find(masses[filled[some]]), filled[some])
    # An end is the start of the next one that is not empty.
    some = some[some < len(filled) - 1]
    np.testing.assert_array_equal(tree.find(ends[filled[some]]), filled[some + 1])


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 100, 5000])
def test_draws_are_in_proportion(capacity: int) -> None:
    """Case 81: chi-square of 10^5 draws."""
    rng = np.random.default_rng(capacity)
    values = random_values(rng, capacity)
    tree = make_tree(values)
    num_draws = 100_000
    counts = np.zeros(capacity)
    for _ in range(10):
        drawn = tree.find(rng.random(num_draws // 10) * tree.total)
        counts += np.bincount(drawn, minlength=capacity)
    assert counts[values == 0].sum() == 0
    expected = num_draws * values[values > 0] / values.sum()
    chi_square = float(((counts[values > 0] - expected) ** 2 / expected).sum())
    if len(expected) > 1:
        assert chi_square < critical_chi_square(len(expected) - 1)
    else:
        assert chi_square == 0


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 100, 5000])
def test_both_edges_find_what_is_not_empty(capacity: int) -> None:
    """Case 83: masses 0 and total, and those that rounding takes beyond."""
    rng = np.random.default_rng(capacity)
    for _ in range(50):
        values = np.where(random_values(rng, capacity) > 0, 10 ** rng.uniform(-12, 3, capacity), 0)
        tree = make_tree(values)
        below, above = np.nextafter(tree.total, [0, np.inf])
        found = tree.find(np.array([0, tree.total, below, above]))
        assert (values[found] > 0).all()
        assert found[0] == np.flatnonzero(values)[0]


@pytest.mark.parametrize("value", [5e-324, 1e-300, 1e300])
def test_a_single_value_of_any_size_is_found(value: float) -> None:
    """Case 83."""
    tree = SumTree(5000)
    tree.set(np.array([4321]), np.array([value]))
    assert tree.total == value
    masses = np.array([0, value / 2, value])
    np.testing.assert_array_equal(tree.find(masses), [4321, 4321, 4321])


def test_sums_stay_exact_over_two_million_updates() -> None:
    """Case 80: values of very different sizes come and go, and empty ones are never drawn."""
    capacity, num_updates, batch = 5000, 2_000_000, 1000
    rng = np.random.default_rng(0)
    tree, values = SumTree(capacity), np.zeros(capacity)
    for i in range(num_updates // batch):
        # Most of the tree is empty in some phases.
        num_filled = capacity if i % 100 < 50 else 10
        indices = rng.integers(0, capacity, batch)
        new = np.where(indices < num_filled, 10 ** rng.uniform(-6, 6, batch), 0)
        tree.set(indices, new)
        values[indices] = new
        if i % 10 == 0:
            found = tree.find(np.append(rng.random(30), [0, 1]) * tree.total)
            assert (values[found] > 0).all()
            exact = math.fsum(values)
            assert abs(tree.total - exact) < 1e-12 * exact
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), values)


def test_of_equal_indices_the_last_counts() -> None:
    """With few, and with more than there are groups."""
    for repeats in (1, 500):
        tree = SumTree(5000)
        tree.set(np.tile([7, 8, 7], repeats), np.tile([1.0, 2.0, 3.0], repeats))
        np.testing.assert_array_equal(tree.get(np.array([8, 7])), [2, 3])
        assert tree.total == 5


def test_setting_and_finding_nothing() -> None:
    tree = make_tree(np.ones(3))
    none = np.zeros(0, np.int64)
    tree.set(none, np.zeros(0))
    assert tree.total == 3
    assert len(tree.find(np.zeros(0))) == len(tree.get(none)) == 0


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_bad_values_change_nothing(value: float) -> None:
    tree = make_tree(np.ones(100))
    with pytest.raises(ValueError, match="finite values of at least 0"):
        tree.set(np.array([0, 1]), np.array([5.0, value]))
    assert tree.total == tree.get(np.arange(100)).sum() == 100


@pytest.mark.parametrize("index", [-1, 5000, 5040])
def test_indices_beyond_the_capacity_are_refused(index: int) -> None:
    """Some of them would hit the padding."""
    tree = make_tree(np.ones(5000))
    with pytest.raises(IndexError, match=r"\[0, 5000\)"):
        tree.set(np.array([index]), np.ones(1))
    with pytest.raises(IndexError, match=r"\[0, 5000\)"):
        tree.get(np.array([index]))


@pytest.mark.parametrize("mass", [-1e-9, math.nan])
def test_bad_masses_are_refused(mass: float) -> None:
    with pytest.raises(ValueError, match=r"from 0 to 2\.0"):
        make_tree(np.ones(2)).find(np.array([1.0, mass]))


def test_nothing_is_found_in_an_empty_tree() -> None:
    tree = SumTree(10)
    with pytest.raises(ValueError, match="all values are 0"):
        tree.find(np.zeros(1))
    tree.set(np.array([3]), np.ones(1))
    tree.set(np.array([3]), np.zeros(1))
    with pytest.raises(ValueError, match="all values are 0"):
        tree.find(np.zeros(1))


def test_memory_is_a_little_more_than_the_values() -> None:
    assert 8 * 100_000 < tree_bytes(100_000) < 1.05 * 8 * 100_000
