"""Stores the steps of all environments, each once, and samples the unrolls that lie in them.

Steps come in blocks: the next T rows of one environment. The unroll of a block has these rows, and
before them the H = K + 1 + extra rows of the same environment that its first transition needs: the
step it starts from, K steps of burn-in, and what the first frame stack still shows. These lie in
the P = ceil(H / T) blocks before it, its predecessors, so that unrolls overlap and yet no row is
there twice.

Blocks are numbered in the order of insertion; number k overwrites number k - num_slots. An unroll
can be sampled as long as its oldest predecessor is stored; the others and the block itself are
younger. That an environment starts anew ends a chain: the next P blocks lack predecessors and are
no unrolls, but those that follow begin in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from seed_rl.replay.sum_tree import SumTree, tree_bytes
from seed_rl.specs import ArraySpec

# An unroll of which nothing is left to learn is still drawn now and then: it may change again.
_LEAST_PRIORITY = 1e-6


class Sample(NamedTuple):
    numbers: np.ndarray  # int64 [n], of the blocks whose unrolls they are
    probabilities: np.ndarray  # float64 [n], with which one draw returns that unroll


class ReplayState(NamedTuple):
    """All that is to be known of the blocks [first, end) besides the blocks themselves."""

    first: int
    end: int
    num_inserted: int
    priorities: np.ndarray  # float64 [end - first], after the exponent; 0: can't be sampled


class ReplayBuffer:
    """Room for `size` unrolls, all allocated by the constructor.

    `columns` and `states` are the leaves of a row and of the recurrent state that went into it.
    Not locked: whoever shares it between threads does that.
    """

    def __init__(
        self,
        columns: Sequence[ArraySpec],
        states: Sequence[ArraySpec],
        num_envs: int,
        length: int,
        burn_in: int,
        num_history_rows: int,
        size: int,
        priority_exponent: float,
    ) -> None:
        num_before = burn_in + 1 + num_history_rows
        num_predecessors = _num_predecessors(length, burn_in, num_history_rows)
        self._length = length
        self._priority_exponent = priority_exponent
        self._num_slots = size + num_predecessors * num_envs

        # Where each row of an unroll lies, the blocks counted from the oldest predecessor.
        rows = np.arange(num_predecessors * length - num_before, (num_predecessors + 1) * length)
        self._block, self._position = rows // length, (rows % length)[:, None]
        # The state belongs to the first row of the burn-in.
        start = num_predecessors * length - (burn_in + 1)
        self._state_block, self._state_position = start // length, start % length

        slots = _Slots(columns, states, length, num_predecessors)
        self._columns = [spec.zeros(self._num_slots) for spec in slots.columns]
        self._states = [spec.zeros(self._num_slots) for spec in slots.states]
        self._env_ids = slots.env_id.zeros(self._num_slots)
        self._versions = slots.version.zeros(self._num_slots)
        # Numbers of the blocks of its unroll, from the oldest to its own; -1: there is none.
        self._blocks = slots.blocks.zeros(self._num_slots)
        # Number of the block whose oldest predecessor this one is; -1: none yet.
        self._dependent = slots.dependent.zeros(self._num_slots)
        self._dependent.fill(-1)
        # Above 0 where, and only where, the unroll can be sampled.
        self._priorities = SumTree(self._num_slots)

        # Numbers of each environment's last blocks, from the oldest; -1 before its chain began.
        self._last_blocks = np.full((num_envs, num_predecessors), -1, np.int64)
        self._num_blocks = 0
        self._num_unrolls = 0
        self._num_inserted = 0

    @property
    def num_bytes(self) -> int:
        arrays = [*self._block_arrays, self._dependent, self._last_blocks]
        return sum(array.nbytes for array in arrays) + tree_bytes(self._num_slots)

    @property
    def state_position(self) -> int:
        """The row of a block, in [0, T), whose recurrent state is to be inserted with it."""
        return self._state_position

    @property
    def num_unrolls(self) -> int:
        """How many can be sampled."""
        return self._num_unrolls

    @property
    def num_inserted(self) -> int:
        """How many there ever were that could be sampled when they were inserted."""
        return self._num_inserted

    @property
    def num_blocks(self) -> int:
        """How many there ever were."""
        return self._num_blocks

    @property
    def first_block(self) -> int:
        """The oldest that is not overwritten."""
        return max(self._num_blocks - self._num_slots, 0)

    @property
    def block_specs(self) -> list[ArraySpec]:
        """Of what `read_blocks` returns."""
        return [ArraySpec(array.shape[1:], array.dtype.name) for array in self._block_arrays]

    def insert(
        self,
        env_ids: np.ndarray,
        columns: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
        is_start: np.ndarray,
        priorities: np.ndarray,
        versions: np.ndarray,
    ) -> None:
        """Adds the next block of each of these environments, in the order given.

        `env_ids` int `[m]`, each at most once; `columns` `[m, T, ...]`; `states` `[m, ...]`, which
        went into the row at `state_position`; `is_start` bool `[m]`, whether the environment's
        earlier rows belong to another run; `priorities` float `[m]`, before the exponent, those of
        blocks that are no unrolls being ignored; `versions` int64 `[m]`. Raises ValueError for
        priorities that are not finite, and then changes nothing.
        """
        env_ids = np.asarray(env_ids, np.int64)
        if len(np.unique(env_ids)) < len(env_ids):
            raise ValueError(f"wanted one block of each environment at a time, saw {env_ids}")
        is_start, priorities = np.asarray(is_start, bool), self._scaled(priorities)
        numbers = self._num_blocks + np.arange(len(env_ids))
        slots = numbers % self._num_slots

        self._last_blocks[env_ids[is_start]] = -1
        blocks = np.concatenate([self._last_blocks[env_ids], numbers[:, None]], axis=1)
        self._last_blocks[env_ids] = blocks[:, 1:]

        # First what goes: a block of which nothing else is needed leaves one unroll incomplete.
        incomplete = self._dependent[slots]
        incomplete = incomplete[incomplete >= 0] % self._num_slots
        self._num_blocks += len(numbers)
        is_unroll = blocks[:, 0] >= self.first_block
        num_new = int(np.count_nonzero(is_unroll))
        self._num_unrolls += num_new - len(incomplete)
        self._num_inserted += num_new
        # Slots of unrolls that go may be among those that are filled again.
        self._priorities.set(
            np.concatenate([incomplete, slots]),
            np.concatenate([np.zeros(len(incomplete)), np.where(is_unroll, priorities, 0)]),
        )

        self._dependent[slots] = -1
        self._dependent[blocks[is_unroll, 0] % self._num_slots] = numbers[is_unroll]
        self._blocks[slots] = blocks
        self._env_ids[slots] = env_ids
        self._versions[slots] = versions
        for stored, column in zip(self._columns, columns, strict=True):
            stored[slots] = column
        for stored, column in zip(self._states, states, strict=True):
            stored[slots] = column

    def sample(self, n: int, rng: np.random.Generator) -> Sample:
        """Draws `n` unrolls in proportion to their priorities, one from each n-th of their sum.

        That is Schaul et al. 2016, appendix B.2.1: fewer come twice than in n independent draws.
        Raises ValueError where there are none.
        """
        total = self._priorities.total
        slots = self._priorities.find((np.arange(n) + rng.random(n)) * (total / n))
        return Sample(self._blocks[slots, -1], self._priorities.get(slots) / total)

    def gather(
        self,
        numbers: np.ndarray,
        out_columns: Sequence[np.ndarray],
        out_states: Sequence[np.ndarray],
    ) -> None:
        """Copies unrolls out: rows `[H + T, n, ...]`, states `[n, ...]` of row H - (K + 1).

        Raises ValueError for numbers that can no longer be sampled.
        """
        blocks = self._blocks[self._slots_of(numbers)] % self._num_slots  # [n, P + 1]
        rows = blocks.T[self._block] * self._length + self._position
        for out, column in zip(out_columns, self._columns, strict=True):
            flat = column.reshape(-1, *column.shape[2:])
            # Any other mode would fill a buffer first and copy that.
            np.take(flat, rows, axis=0, out=out, mode="clip")
        for out, state in zip(out_states, self._states, strict=True):
            np.take(state, blocks[:, self._state_block], axis=0, out=out, mode="clip")

    def update(self, numbers: np.ndarray, priorities: np.ndarray) -> int:
        """Sets priorities float `[n]`, before the exponent, of the unrolls `numbers` int64 `[n]`.

        Those that can no longer be sampled stay so. Returns how many could be. Of equal numbers,
        the last counts. Raises ValueError for priorities that are not finite.
        """
        numbers, priorities = np.asarray(numbers, np.int64), self._scaled(priorities)
        is_unroll = self._are_unrolls(numbers)
        self._priorities.set(numbers[is_unroll] % self._num_slots, priorities[is_unroll])
        return int(np.count_nonzero(is_unroll))

    def env_ids(self, numbers: np.ndarray) -> np.ndarray:
        """The environments, int32 `[n]`, of unrolls that can be sampled."""
        return self._env_ids[self._slots_of(numbers)]

    def versions(self, numbers: np.ndarray) -> np.ndarray:
        """What was inserted as the versions, int64 `[n]`, of unrolls that can be sampled."""
        return self._versions[self._slots_of(numbers)]

    def read_blocks(self, first: int, end: int) -> list[np.ndarray]:
        """Copies of all that the blocks [first, end) consist of, `[end - first, ...]` each.

        That never changes until they are overwritten. Raises ValueError where they are not stored.
        """
        if not self.first_block <= first <= end <= self._num_blocks:
            raise ValueError(f"blocks {first} to {end} are not stored")
        slots = np.arange(first, end) % self._num_slots
        return [array[slots] for array in self._block_arrays]

    def write_blocks(self, first: int, arrays: Sequence[np.ndarray]) -> None:
        """Puts back what `read_blocks(first, ...)` returned. It counts only after `restore`."""
        numbers = first + np.arange(len(arrays[0]))
        if not np.array_equal(arrays[-1][:, -1], numbers):
            raise ValueError(f"wanted the blocks from {first} on, saw others")
        for stored, array in zip(self._block_arrays, arrays, strict=True):
            stored[numbers % self._num_slots] = array

    def state(self, end: int) -> ReplayState:
        """That of the stored blocks before number `end`."""
        first = min(self.first_block, end)
        priorities = self._priorities.get(np.arange(first, end) % self._num_slots)
        return ReplayState(first, end, self._num_inserted, priorities)

    def restore(self, state: ReplayState) -> None:
        """Goes on from `state`, whose blocks were written before; only where nothing was inserted.

        All environments begin new chains.
        """
        numbers = np.arange(state.first, state.end)
        slots = numbers % self._num_slots
        self._num_blocks, self._num_inserted = state.end, state.num_inserted
        self._priorities.set(slots, state.priorities)
        is_unroll = state.priorities > 0
        self._num_unrolls = int(np.count_nonzero(is_unroll))
        oldest = self._blocks[slots[is_unroll], 0]
        self._dependent[oldest % self._num_slots] = numbers[is_unroll]

    @property
    def _block_arrays(self) -> list[np.ndarray]:
        """What never changes about blocks. The last array ends with their own numbers."""
        own = [self._env_ids, self._versions, self._blocks]
        return [*self._columns, *self._states, *own]

    def _are_unrolls(self, numbers: np.ndarray) -> np.ndarray:
        slots = numbers % self._num_slots
        return (self._blocks[slots, -1] == numbers) & (self._priorities.get(slots) > 0)

    def _slots_of(self, numbers: np.ndarray) -> np.ndarray:
        if not (is_unroll := self._are_unrolls(numbers)).all():
            raise ValueError(f"unrolls {numbers[~is_unroll]} can't be sampled any more")
        return numbers % self._num_slots

    def _scaled(self, priorities: np.ndarray) -> np.ndarray:
        priorities = np.asarray(priorities, np.float64)
        if not np.isfinite(priorities).all():
            raise ValueError(f"wanted finite priorities, saw {priorities}")
        scaled: np.ndarray = np.maximum(priorities, _LEAST_PRIORITY) ** self._priority_exponent
        return scaled


def replay_bytes(
    columns: Sequence[ArraySpec],
    states: Sequence[ArraySpec],
    num_envs: int,
    length: int,
    burn_in: int,
    num_history_rows: int,
    size: int,
) -> int:
    """What `num_bytes` of a ReplayBuffer of these arguments will be; allocates nothing."""
    num_predecessors = _num_predecessors(length, burn_in, num_history_rows)
    num_slots = size + num_predecessors * num_envs
    slot = _Slots(columns, states, length, num_predecessors).num_bytes
    return num_slots * slot + tree_bytes(num_slots) + 8 * num_envs * num_predecessors


def _num_predecessors(length: int, burn_in: int, num_history_rows: int) -> int:
    return -(-(burn_in + 1 + num_history_rows) // length)


class _Slots:
    """What a slot consists of, apart from its priority."""

    def __init__(
        self,
        columns: Sequence[ArraySpec],
        states: Sequence[ArraySpec],
        length: int,
        num_predecessors: int,
    ) -> None:
        self.columns = [ArraySpec((length, *spec.shape), spec.dtype) for spec in columns]
        self.states = list(states)
        self.env_id = ArraySpec((), "int32")
        self.version = self.dependent = ArraySpec((), "int64")
        self.blocks = ArraySpec((num_predecessors + 1,), "int64")

    @property
    def num_bytes(self) -> int:
        own = [self.env_id, self.version, self.dependent, self.blocks]
        return sum(spec.num_bytes for spec in [*self.columns, *self.states, *own])
