"""The way of unrolls to the train loop: bounded, in order, and quick to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from seed_rl.experience import BatchQueue, HostBatch, Prefetcher, Stopped
from seed_rl.specs import ArraySpec
from seed_rl.threads import ThreadGroup
from seed_rl.unrolls import UnrollStore

BATCH_SIZE, LENGTH, NUM_ENVS = 3, 2, 4
STEP_SPECS = [ArraySpec((), "int64"), ArraySpec((2,), "float32")]
STATE_SPECS = [ArraySpec((3,), "float32")]


def make_queue(stop: threading.Event, num_buffers: int = 2) -> BatchQueue:
    return BatchQueue(BATCH_SIZE, LENGTH, STEP_SPECS, STATE_SPECS, stop, num_buffers)


def make_store() -> UnrollStore:
    return UnrollStore(NUM_ENVS, LENGTH, STEP_SPECS, STATE_SPECS, stagger=False)


class Producer:
    """Puts unrolls of all environments in turn. The one numbered n is filled with n."""

    def __init__(self, queue: BatchQueue) -> None:
        self._queue, self._store = queue, make_store()
        self.num_put = 0

    def put(self, count: int = 1) -> None:
        for _ in range(count):
            env_id = self.num_put % NUM_ENVS
            self._store.steps[0][env_id] = self.num_put * 10 + np.arange(LENGTH + 1)
            self._store.steps[1][env_id] = self.num_put
            self._store.states[0][env_id] = self.num_put
            self._store.versions[env_id] = self.num_put * 100 + np.arange(LENGTH + 1)
            self._queue.put(self._store, np.array([env_id]))
            self.num_put += 1

    def run(self) -> None:
        while True:
            self.put()


def assert_holds(batch: HostBatch, first: int) -> None:
    """Time-major, and column by column the unrolls from number `first` on."""
    numbers = np.arange(first, first + BATCH_SIZE)
    times = np.arange(LENGTH + 1)[:, None]
    np.testing.assert_array_equal(batch.steps[0], numbers * 10 + times)
    assert batch.steps[1].shape == (LENGTH + 1, BATCH_SIZE, 2)
    assert (batch.steps[1] == numbers[:, None]).all()
    assert (batch.states[0] == numbers[:, None]).all()
    np.testing.assert_array_equal(batch.versions, numbers * 100 + times)
    np.testing.assert_array_equal(batch.env_ids, numbers % NUM_ENVS)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def group() -> Iterator[ThreadGroup]:
    group = ThreadGroup(threading.Event())
    yield group
    group.join(10)
    group.raise_failure()


def test_batches_come_in_the_order_of_their_unrolls(group: ThreadGroup) -> None:
    """Case 58."""
    queue = make_queue(group.stop)
    producer = Producer(queue)
    group.start("producer", producer.run)
    for k in range(20):
        batch = queue.get()
        assert_holds(batch, k * BATCH_SIZE)
        queue.release(batch)


def test_several_unrolls_at_once_may_fill_more_than_a_batch() -> None:
    queue, store = make_queue(threading.Event()), make_store()
    for env_id in range(NUM_ENVS):
        store.states[0][env_id] = env_id
    queue.put(store, np.arange(NUM_ENVS))
    assert queue.waiting == 1
    queue.put(store, np.arange(NUM_ENVS)[2:])
    assert queue.waiting == 2
    assert [queue.get().env_ids.tolist() for _ in range(2)] == [[0, 1, 2], [3, 2, 3]]


@pytest.mark.parametrize("num_buffers", [1, 2])
def test_put_waits_while_no_buffer_is_free(group: ThreadGroup, num_buffers: int) -> None:
    """Case 5: a learner that does not train stalls its actors; memory does not grow."""
    queue = make_queue(group.stop, num_buffers)
    producer = Producer(queue)
    group.start("producer", producer.run)
    wait_until(lambda: queue.waiting == num_buffers)
    time.sleep(0.3)  # it could do much in this time
    assert producer.num_put == num_buffers * BATCH_SIZE
    assert queue.waiting == num_buffers
    batch = queue.get()
    time.sleep(0.3)
    assert producer.num_put == num_buffers * BATCH_SIZE, "a buffer in use is not free"
    assert_holds(batch, 0)
    queue.release(batch)
    wait_until(lambda: producer.num_put == (num_buffers + 1) * BATCH_SIZE)


def test_stop_wakes_whoever_waits() -> None:
    """Cases 30 and 116: whether the queue is full or empty."""
    group = ThreadGroup(threading.Event())
    full, empty = make_queue(group.stop), make_queue(group.stop)
    producer = Producer(full)
    ended: list[str] = []

    def record(name: str, body: Callable[[], object]) -> None:
        with pytest.raises(Stopped):
            body()
        ended.append(name)

    prefetcher = Prefetcher(empty, lambda batch: batch, 1, group.stop)
    unasked = Prefetcher(full, lambda batch: batch, 0, group.stop)
    group.start("put", lambda: record("put", producer.run))
    group.start("get", lambda: record("get", empty.get))
    group.start("no batch", lambda: record("no batch", prefetcher.run))
    group.start("not wanted", lambda: record("not wanted", unasked.run))
    wait_until(lambda: full.waiting == 2)
    assert not ended
    start = time.monotonic()
    group.join(5)
    group.raise_failure()
    assert sorted(ended) == ["get", "no batch", "not wanted", "put"]
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("num_ahead", [0, 1])
def test_prefetcher_is_so_many_batches_ahead(num_ahead: int, group: ThreadGroup) -> None:
    """Case 5: and not more, or the policy lag would grow."""
    queue = make_queue(group.stop)
    moved: list[int] = []

    def to_device(batch: HostBatch) -> tuple[int, np.ndarray]:
        moved.append(len(moved))
        return moved[-1], batch.steps[0].copy()

    prefetcher = Prefetcher(queue, to_device, num_ahead, group.stop)
    producer = Producer(queue)
    group.start("producer", producer.run)
    group.start("prefetch", prefetcher.run)
    for k in range(10):
        wait_until(lambda k=k: len(moved) == k + num_ahead)
        time.sleep(0.05)
        assert len(moved) == k + num_ahead
        taken = prefetcher.get(10)
        assert taken is not None
        number, first_column = taken
        assert number == k
        np.testing.assert_array_equal(
            first_column[0], np.arange(k * BATCH_SIZE, (k + 1) * BATCH_SIZE) * 10
        )
    # Two full buffers wait, ten batches have been used.
    wait_until(lambda: producer.num_put == (10 + num_ahead + 2) * BATCH_SIZE)


def test_to_wait_again_is_to_ask_once(group: ThreadGroup) -> None:
    queue = make_queue(group.stop)
    moved: list[HostBatch] = []
    prefetcher = Prefetcher(queue, moved.append, 0, group.stop)
    assert prefetcher.get(0.01) is None
    assert prefetcher.get(0.01) is None
    group.start("producer", Producer(queue).run)
    group.start("prefetch", prefetcher.run)
    wait_until(lambda: len(moved) == 1)
    time.sleep(0.05)
    assert len(moved) == 1


def test_a_failure_on_the_way_to_the_device_is_not_lost() -> None:
    """Case 70."""
    group = ThreadGroup(threading.Event())
    queue = make_queue(group.stop)

    def to_device(batch: HostBatch) -> None:
        raise MemoryError("no room on the device")

    group.start("prefetch", Prefetcher(queue, to_device, 1, group.stop).run)
    Producer(queue).put(BATCH_SIZE)
    assert group.stop.wait(10)
    group.join(10)
    with pytest.raises(MemoryError, match="no room on the device"):
        group.raise_failure()
