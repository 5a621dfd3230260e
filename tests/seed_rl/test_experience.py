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


def make_queue(stop: threading.Event) -> BatchQueue:
    return BatchQueue(BATCH_SIZE, LENGTH, STEP_SPECS, STATE_SPECS, stop)


def make_store() -> UnrollStore:
    return UnrollStore(NUM_ENVS, LENGTH, STEP_SPECS, STATE_SPECS, group_size=NUM_ENVS)


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
        queue.ask()
        batch = queue.get()
        assert_holds(batch, k * BATCH_SIZE)
        queue.release(batch)


def test_several_unrolls_at_once_may_fill_more_than_a_batch(group: ThreadGroup) -> None:
    queue, store = make_queue(group.stop), make_store()
    for env_id in range(NUM_ENVS):
        store.states[0][env_id] = env_id

    def put_twice() -> None:
        queue.put(store, np.arange(NUM_ENVS))
        queue.put(store, np.arange(NUM_ENVS)[2:])

    group.start("put", put_twice)
    taken = []
    for _ in range(2):
        queue.ask()
        batch = queue.get()
        taken.append(batch.env_ids.tolist())
        queue.release(batch)
    assert taken == [[0, 1, 2], [3, 2, 3]]


def test_put_waits_until_the_full_batch_is_asked_for(group: ThreadGroup) -> None:
    """Case 5: a learner that does not train stalls its actors; the policy lag does not grow."""
    queue = make_queue(group.stop)
    producer = Producer(queue)
    group.start("producer", producer.run)
    for k in range(3):
        wait_until(lambda: queue.waiting == 1)
        time.sleep(0.2)  # it could do much in this time
        assert producer.num_put == (k + 1) * BATCH_SIZE - 1, "the one in hand filled the batch"
        batch = queue.get()
        assert_holds(batch, k * BATCH_SIZE)
        queue.release(batch)
        time.sleep(0.2)
        assert producer.num_put == (k + 1) * BATCH_SIZE - 1, "on its way is not asked for"
        queue.ask()


def test_tells_how_full_the_first_batch_is(group: ThreadGroup) -> None:
    queue = make_queue(group.stop)
    producer = Producer(queue)
    queue.ask()
    told = [queue.progress()]
    for _ in range(BATCH_SIZE + 1):
        producer.put()
        told.append(queue.progress())
        if producer.num_put == BATCH_SIZE:
            queue.release(queue.get())
    assert told == [*(f"first batch {n}/{BATCH_SIZE} unrolls" for n in range(BATCH_SIZE)), "", ""]


def test_put_waits_while_the_buffer_is_in_use(group: ThreadGroup) -> None:
    """Case 5: memory does not grow."""
    queue = make_queue(group.stop)
    producer = Producer(queue)
    for _ in range(2):
        queue.ask()
    group.start("producer", producer.run)
    batch = queue.get()
    time.sleep(0.3)
    assert producer.num_put == BATCH_SIZE
    assert_holds(batch, 0)
    queue.release(batch)
    wait_until(lambda: producer.num_put == 2 * BATCH_SIZE)


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

    prefetcher = Prefetcher(empty, lambda batch: batch, group.stop)
    moved: list[HostBatch] = []
    ahead = Prefetcher(full, moved.append, group.stop)
    group.start("put", lambda: record("put", producer.run))
    group.start("get", lambda: record("get", empty.get))
    group.start("no batch", lambda: record("no batch", prefetcher.run))
    group.start("not wanted", lambda: record("not wanted", ahead.run))
    wait_until(lambda: len(moved) == 1)
    assert not ended
    start = time.monotonic()
    group.join(5)
    group.raise_failure()
    assert sorted(ended) == ["get", "no batch", "not wanted", "put"]
    assert time.monotonic() - start < 2


def test_prefetcher_is_one_batch_ahead(group: ThreadGroup) -> None:
    """Case 5: and not more, or the policy lag would grow."""
    queue = make_queue(group.stop)
    moved: list[int] = []

    def to_device(batch: HostBatch) -> tuple[int, np.ndarray]:
        moved.append(len(moved))
        return moved[-1], batch.steps[0].copy()

    prefetcher = Prefetcher(queue, to_device, group.stop)
    assert prefetcher.get(0.01) is None
    producer = Producer(queue)
    group.start("producer", producer.run)
    group.start("prefetch", prefetcher.run)
    for k in range(10):
        # One batch waits on the device, and no more is filled until it is asked for.
        wait_until(lambda k=k: len(moved) == k + 1)
        time.sleep(0.05)
        assert len(moved) == k + 1
        taken = prefetcher.get(10)
        assert taken is not None
        number, first_column = taken
        assert number == k
        np.testing.assert_array_equal(
            first_column[0], np.arange(k * BATCH_SIZE, (k + 1) * BATCH_SIZE) * 10
        )
    wait_until(lambda: len(moved) == 11)
    assert producer.num_put == 11 * BATCH_SIZE - 1


def test_a_failure_on_the_way_to_the_device_is_not_lost() -> None:
    """Case 70."""
    group = ThreadGroup(threading.Event())
    queue = make_queue(group.stop)

    def to_device(batch: HostBatch) -> None:
        raise MemoryError("no room on the device")

    group.start("prefetch", Prefetcher(queue, to_device, group.stop).run)
    queue.ask()
    Producer(queue).put(BATCH_SIZE)
    assert group.stop.wait(10)
    group.join(10)
    with pytest.raises(MemoryError, match="no room on the device"):
        group.raise_failure()
