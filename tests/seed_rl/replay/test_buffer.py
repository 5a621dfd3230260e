"""The replay's storage against a model that keeps whole histories in Python lists."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from seed_rl.replay.buffer import ReplayBuffer, replay_bytes
from seed_rl.specs import ArraySpec

COLUMNS = [ArraySpec((), "int64"), ArraySpec((2, 3), "uint8"), ArraySpec((1,), "float32")]
STATES = [ArraySpec((), "int64"), ArraySpec((4,), "float32")]
LEAST_PRIORITY = 1e-6


def fill(column: ArraySpec, serials: np.ndarray) -> np.ndarray:
    """Contents of a column or state for rows with these serial numbers."""
    axes = tuple(range(serials.ndim, serials.ndim + len(column.shape)))
    offsets = np.arange(math.prod(column.shape)).reshape(column.shape)
    return (np.expand_dims(serials, axes) + offsets).astype(column.dtype)


@dataclasses.dataclass
class Block:
    env_id: int
    run: list[int]  # serials of all rows of its run of the environment, up to its last
    priority: float
    version: int
    blocks: list[int]  # numbers of all blocks of its run, up to itself


class Model:
    """What the buffer is to do, said as plainly as can be."""

    def __init__(self, num_envs: int, length: int, burn_in: int, extra: int, size: int) -> None:
        self.length, self.num_before = length, burn_in + 1 + extra
        self.num_predecessors = math.ceil(self.num_before / length)
        self.num_slots = size + self.num_predecessors * num_envs
        self.blocks: list[Block] = []
        self.runs: dict[int, list[int]] = {}
        self.runs_blocks: dict[int, list[int]] = {}
        self.num_inserted = 0
        self.unrolls: list[int] = []

    def insert(self, env_id: int, rows: list[int], start: bool, priority: float) -> None:
        if start or env_id not in self.runs:
            self.runs[env_id], self.runs_blocks[env_id] = [], []
        self.runs[env_id] = self.runs[env_id] + rows
        self.runs_blocks[env_id] = [*self.runs_blocks[env_id], len(self.blocks)]
        version = 10 * len(self.blocks)
        self.blocks.append(
            Block(env_id, self.runs[env_id], priority, version, self.runs_blocks[env_id])
        )

    def can_be_sampled(self, number: int) -> bool:
        first_stored = len(self.blocks) - self.num_slots
        needed = self.blocks[number].blocks[-1 - self.num_predecessors :]
        return len(needed) == self.num_predecessors + 1 and needed[0] >= first_stored

    def refresh(self, num_new: int) -> None:
        """To be called after each insertion of several blocks."""
        first_stored = max(len(self.blocks) - self.num_slots, 0)
        stored = range(first_stored, len(self.blocks))
        self.unrolls = [number for number in stored if self.can_be_sampled(number)]
        self.num_inserted += sum(n >= len(self.blocks) - num_new for n in self.unrolls)

    def rows(self, number: int) -> list[int]:
        return self.blocks[number].run[-self.num_before - self.length :]


class Pair:
    """A buffer and its model, which meet the same."""

    def __init__(self, rng: np.random.Generator, **shape: int) -> None:
        self.rng = rng
        self.num_envs, self.length = shape["num_envs"], shape["length"]
        self.burn_in, self.extra, self.size = shape["burn_in"], shape["extra"], shape["size"]
        self.exponent = float(rng.choice([0.0, 0.9, 1.0]))
        self.buffer = ReplayBuffer(
            COLUMNS,
            STATES,
            num_envs=self.num_envs,
            length=self.length,
            burn_in=self.burn_in,
            num_history_rows=self.extra,
            size=self.size,
            priority_exponent=self.exponent,
        )
        self.model = Model(self.num_envs, self.length, self.burn_in, self.extra, self.size)
        self.num_rows = 0

    def insert(self, env_ids: np.ndarray, is_start: np.ndarray) -> None:
        m = len(env_ids)
        serials = self.num_rows + np.arange(m * self.length).reshape(m, self.length)
        self.num_rows += serials.size
        priorities = self.priorities(m)
        versions = 10 * (len(self.model.blocks) + np.arange(m))
        for i in range(m):
            self.model.insert(env_ids[i], serials[i].tolist(), is_start[i], priorities[i])
        self.model.refresh(m)
        at_state = serials[:, self.buffer.state_position]
        self.buffer.insert(
            env_ids,
            [fill(column, serials) for column in COLUMNS],
            [fill(state, at_state) for state in STATES],
            is_start,
            priorities,
            versions,
        )

    def priorities(self, n: int) -> np.ndarray:
        return self.rng.choice([0.0, -1.0, 1e-9, 0.5, 1.0, 3.0], n)

    def update(self, numbers: np.ndarray) -> None:
        priorities = self.priorities(len(numbers))
        fitting = 0
        for number, priority in zip(numbers.tolist(), priorities, strict=True):
            if number in self.model.unrolls:
                self.model.blocks[number].priority = priority
                fitting += 1
        assert self.buffer.update(numbers, priorities) == fitting

    def assert_counts_are_equal(self) -> None:
        assert self.buffer.num_unrolls == len(self.model.unrolls)
        assert self.buffer.num_inserted == self.model.num_inserted

    def assert_unrolls_are_equal(self, numbers: np.ndarray) -> None:
        n, num_rows = len(numbers), self.model.num_before + self.length
        columns = [column.zeros(num_rows, n) for column in COLUMNS]
        states = [state.zeros(n) for state in STATES]
        self.buffer.gather(numbers, columns, states)
        serials = np.array([self.model.rows(number) for number in numbers], np.int64)
        serials = serials.reshape(n, num_rows).T
        for spec, column in zip(COLUMNS, columns, strict=True):
            np.testing.assert_array_equal(column, fill(spec, serials))
        # The state that went into the first row of the burn-in.
        for spec, state in zip(STATES, states, strict=True):
            np.testing.assert_array_equal(state, fill(spec, serials[self.extra]))
        blocks = [self.model.blocks[number] for number in numbers]
        np.testing.assert_array_equal(
            self.buffer.env_ids(numbers), [block.env_id for block in blocks]
        )
        np.testing.assert_array_equal(
            self.buffer.versions(numbers), [block.version for block in blocks]
        )

    def probabilities(self) -> dict[int, float]:
        scaled = {
            number: max(self.model.blocks[number].priority, LEAST_PRIORITY) ** self.exponent
            for number in self.model.unrolls
        }
        total = sum(scaled.values())
        return {number: value / total for number, value in scaled.items()}

    def assert_a_sample_fits(self, n: int) -> None:
        sample = self.buffer.sample(n, self.rng)
        wanted = self.probabilities()
        np.testing.assert_allclose(
            sample.probabilities, [wanted[number] for number in sample.numbers], rtol=1e-9
        )
        self.assert_unrolls_are_equal(sample.numbers)


def random_pair(seed: int) -> Pair:
    rng = np.random.default_rng(seed)
    return Pair(
        rng,
        num_envs=int(rng.integers(1, 6)),
        length=int(rng.integers(1, 7)),
        burn_in=int(rng.integers(0, 9)),
        extra=int(rng.integers(0, 4)),
        size=int(rng.integers(1, 30)),
    )


@pytest.mark.parametrize("seed", range(16))
def test_random_operations(seed: int) -> None:
    """Case 86 (every row is stored once, and found in all unrolls that have it), and eviction.

    Environments insert at very different rates, several at once in any order, and start anew.
    """
    pair = random_pair(seed)
    rng = pair.rng
    rates = rng.uniform(0.05, 1, pair.num_envs)
    restarts = float(rng.choice([0, 0.02, 0.3]))
    most_unrolls = 0
    for step in range(300):
        env_ids = rng.permutation(np.flatnonzero(rng.random(pair.num_envs) < rates))
        pair.insert(env_ids, rng.random(len(env_ids)) < restarts)
        pair.assert_counts_are_equal()
        most_unrolls = max(most_unrolls, len(pair.model.unrolls))
        if not pair.model.blocks:
            continue
        # Also those of the past, those that are no unrolls, and those that are not there yet.
        pair.update(rng.integers(0, len(pair.model.blocks) + 3, 6))
        if pair.model.unrolls:
            pair.assert_a_sample_fits(5)
        if step % 20 == 0:
            pair.assert_unrolls_are_equal(np.array(pair.model.unrolls, np.int64))
    if restarts == 0:
        assert most_unrolls >= pair.size


@pytest.mark.parametrize(
    ("length", "burn_in", "extra", "num_predecessors", "state_position"),
    [
        (80, 40, 0, 1, 39),
        (80, 40, 3, 1, 39),
        (80, 79, 0, 1, 0),
        (80, 79, 1, 2, 0),
        (80, 80, 0, 2, 79),
        (5, 0, 0, 1, 4),
        (1, 3, 2, 6, 0),
    ],
)
def test_where_the_state_is_and_how_many_blocks_an_unroll_needs(
    length: int, burn_in: int, extra: int, num_predecessors: int, state_position: int
) -> None:
    """The fault of the original that design.md, section 5, tells first."""
    shape = {"num_envs": 1, "length": length, "burn_in": burn_in, "extra": extra, "size": 3}
    pair = Pair(np.random.default_rng(0), **shape)
    assert pair.buffer.state_position == state_position
    for count in range(1, 2 * num_predecessors + 8):
        pair.insert(np.array([0]), np.array([False]))
        assert pair.buffer.num_unrolls == min(max(count - num_predecessors, 0), 3)
        assert pair.buffer.num_inserted == max(count - num_predecessors, 0)
    pair.assert_unrolls_are_equal(np.array(pair.model.unrolls))


def full_pair(num_blocks: int = 60) -> Pair:
    pair = Pair(np.random.default_rng(1), num_envs=2, length=4, burn_in=2, extra=1, size=20)
    for _ in range(num_blocks // 2):
        pair.insert(np.array([1, 0]), np.zeros(2, bool))
    return pair


def test_one_environment_that_hangs_costs_its_own_unrolls_only() -> None:
    """Its next block finds its predecessor overwritten; the one after is an unroll again."""
    pair = full_pair()
    for _ in range(30):
        pair.insert(np.array([0]), np.array([False]))
    assert set(pair.buffer.env_ids(np.array(pair.model.unrolls)).tolist()) == {0}
    for num_unrolls_of_1 in (0, 1, 2):
        pair.insert(np.array([1]), np.array([False]))
        pair.assert_counts_are_equal()
        owners = pair.buffer.env_ids(np.array(pair.model.unrolls))
        assert np.count_nonzero(owners == 1) == num_unrolls_of_1


def test_priorities_of_overwritten_unrolls_are_ignored() -> None:
    pair = full_pair()
    sample = pair.buffer.sample(10, pair.rng)
    for _ in range(20):
        pair.insert(np.array([0, 1]), np.zeros(2, bool))
    before = pair.buffer.sample(500, np.random.default_rng(0))
    assert pair.buffer.update(sample.numbers, np.full(10, 1e6)) == 0
    after = pair.buffer.sample(500, np.random.default_rng(0))
    np.testing.assert_array_equal(before.numbers, after.numbers)
    np.testing.assert_array_equal(before.probabilities, after.probabilities)


def test_what_is_overwritten_cannot_be_read() -> None:
    """Rather than another unroll in its place."""
    pair = full_pair()
    numbers = pair.buffer.sample(3, pair.rng).numbers
    for _ in range(20):
        pair.insert(np.array([0, 1]), np.zeros(2, bool))
    for read in (pair.buffer.env_ids, pair.buffer.versions, pair.assert_unrolls_are_equal):
        with pytest.raises(ValueError, match="can't be sampled any more"):
            read(numbers)


def test_draws_are_in_proportion_to_priorities() -> None:
    """Case 81, through the buffer: each draw of a batch, and the batch as a whole."""
    pair = full_pair()
    wanted = pair.probabilities()
    counts = dict.fromkeys(wanted, 0)
    num_draws = 0
    for _ in range(400):
        sample = pair.buffer.sample(25, pair.rng)
        num_draws += len(sample.numbers)
        for number in sample.numbers.tolist():
            counts[number] += 1
    for number, probability in wanted.items():
        spread = math.sqrt(num_draws * probability * (1 - probability))
        assert abs(counts[number] - num_draws * probability) <= 4 * spread + 1


class Edge:
    """A generator whose numbers are all at one end of [0, 1]."""

    def __init__(self, value: float) -> None:
        self._value = value

    def random(self, n: int) -> np.ndarray:
        return np.full(n, self._value)


@pytest.mark.parametrize("edge", [0.0, 1.0])
def test_both_edges_of_the_interval(edge: float) -> None:
    """Case 83: unrolls that can be sampled, and importance weights that are finite."""
    pair = full_pair()
    generator: Any = Edge(edge)
    for n in (1, 7):
        sample = pair.buffer.sample(n, generator)
        assert set(sample.numbers.tolist()) <= set(pair.model.unrolls)
        assert (sample.probabilities > 0).all()
        weights = sample.probabilities**-0.6
        weights /= weights.max()
        assert np.isfinite(weights).all()
        assert weights.max() == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_priorities_that_are_not_finite_are_refused(bad: float) -> None:
    pair = full_pair()
    numbers = np.array(pair.model.unrolls[:2])
    with pytest.raises(ValueError, match="finite priorities"):
        pair.buffer.update(numbers, np.array([1, bad]))
    rows = [column.zeros(1, 4) for column in COLUMNS]
    states = [state.zeros(1) for state in STATES]
    with pytest.raises(ValueError, match="finite priorities"):
        pair.buffer.insert(
            np.array([0]), rows, states, np.array([False]), np.array([bad]), np.array([0])
        )
    pair.assert_counts_are_equal()
    pair.assert_a_sample_fits(10)
    pair.insert(np.array([0]), np.array([False]))
    pair.assert_unrolls_are_equal(np.array(pair.model.unrolls))


def test_an_environment_has_one_block_at_a_time() -> None:
    pair = full_pair()
    with pytest.raises(ValueError, match="one block of each environment"):
        pair.insert(np.array([1, 0, 1]), np.zeros(3, bool))


def test_nothing_to_sample() -> None:
    pair = full_pair(0)
    pair.insert(np.array([0, 1]), np.ones(2, bool))
    assert pair.buffer.num_unrolls == pair.buffer.num_inserted == 0
    with pytest.raises(ValueError, match="all values are 0"):
        pair.buffer.sample(1, pair.rng)
    assert pair.buffer.update(np.array([-1, 0, 1, 2, 10**12]), np.ones(5)) == 0


def test_memory_is_told_before_it_is_taken() -> None:
    """Case 86: and single rows are stored, each once: little more than the rows themselves."""
    for seed in range(10):
        pair = random_pair(seed)
        shape = (pair.num_envs, pair.length, pair.burn_in, pair.extra, pair.size)
        assert replay_bytes(COLUMNS, STATES, *shape) == pair.buffer.num_bytes
    frames = [ArraySpec((84, 84), "uint8"), ArraySpec((), "float32"), ArraySpec((), "uint8")]
    lstm = [ArraySpec((512,), "float32")] * 2
    rows = 100_000 * 80 * (84 * 84 + 4 + 1)
    predicted = replay_bytes(frames, lstm, 256, 80, 40, 3, 100_000)
    assert rows < predicted < 1.02 * rows
