"""A saved replay is the one that was saved, or none; and saving it disturbs nobody."""

from __future__ import annotations

import logging
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from seed_rl.replay import storage as storage_module
from seed_rl.replay.buffer import ReplayBuffer
from seed_rl.replay.storage import ReplayStorage
from seed_rl.specs import ArraySpec

COLUMNS = [ArraySpec((), "int64"), ArraySpec((20, 20), "uint8")]
STATES = [ArraySpec((4,), "float32")]
NUM_ENVS, LENGTH, BURN_IN, SIZE = 3, 4, 5, 40
SETTINGS = {"--burn_in": BURN_IN, "--replay_buffer_size": SIZE}
BLOCK_BYTES = LENGTH * (8 + 400) + 16 + 4 + 8 + 8 * 3  # the last: of the three blocks of an unroll


class Replay:
    """A buffer and its storage, as one run of the program has them."""

    def __init__(self, folder: pathlib.Path, settings: Any = SETTINGS) -> None:
        self.folder = folder
        self.buffer = ReplayBuffer(COLUMNS, STATES, NUM_ENVS, LENGTH, BURN_IN, 1, SIZE, 0.9)
        self.lock = threading.Lock()
        self.storage = ReplayStorage(str(folder / "replay"), self.buffer, self.lock, settings)
        self._is_start = np.ones(NUM_ENVS, bool)

    def insert(self, num_blocks: int, seed: int = 0) -> None:
        rng = np.random.default_rng([seed, self.buffer.num_blocks])
        for _ in range(num_blocks):
            env_ids = rng.integers(0, NUM_ENVS, 1)
            rows = [
                rng.integers(0, 256, (1, LENGTH, *spec.shape)).astype(spec.dtype)
                for spec in COLUMNS
            ]
            states = [rng.standard_normal((1, *spec.shape)).astype(spec.dtype) for spec in STATES]
            starts = self._is_start[env_ids] | (rng.random(1) < 0.02)
            with self.lock:
                self.buffer.insert(
                    env_ids, rows, states, starts, rng.random(1), np.array([num_blocks])
                )
            self._is_start[env_ids] = False

    def save(self, number: int) -> None:
        """As the learner does: the checkpoint is there when its index is."""
        with self.storage.saving(number, lambda: {"num_blocks": self.buffer.num_blocks}):
            (self.folder / f"ckpt-{number}.index").touch()

    @property
    def files(self) -> list[str]:
        return sorted(os.listdir(self.folder / "replay"))


def newest(folder: pathlib.Path) -> int:
    return max(int(path.stem.partition("-")[2]) for path in folder.glob("ckpt-*.index"))


def resume(folder: pathlib.Path, number: int | None = None) -> tuple[Replay, Any]:
    replay = Replay(folder)
    return replay, replay.storage.restore(newest(folder) if number is None else number)


def assert_equal(buffer: ReplayBuffer, wanted: ReplayBuffer) -> None:
    """Contents, priorities and counts, of the buffer as a whole and of each unroll."""
    end = wanted.num_blocks
    for name in ("num_blocks", "num_unrolls", "num_inserted"):
        assert getattr(buffer, name) == getattr(wanted, name), name
    state, wanted_state = buffer.state(end), wanted.state(end)
    np.testing.assert_array_equal(state.priorities, wanted_state.priorities)
    unrolls = state.first + np.flatnonzero(state.priorities)
    assert len(unrolls) == buffer.num_unrolls
    gathered = []
    for one in (buffer, wanted):
        columns = [spec.zeros(BURN_IN + 2 + LENGTH, len(unrolls)) for spec in COLUMNS]
        states = [spec.zeros(len(unrolls)) for spec in STATES]
        one.gather(unrolls, columns, states)
        gathered.append([*columns, *states, one.env_ids(unrolls), one.versions(unrolls)])
    for array, wanted_array in zip(*gathered, strict=True):
        np.testing.assert_array_equal(array, wanted_array)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Segments of four blocks, so that a replay has many."""
    monkeypatch.setattr(storage_module, "_SEGMENT_BYTES", 4 * BLOCK_BYTES + 10)
    return 4 * BLOCK_BYTES


@pytest.mark.parametrize("num_blocks", [0, 1, 30, 46, 47, 200])
def test_what_is_restored_is_what_was_saved(tmp_path: pathlib.Path, num_blocks: int) -> None:
    """Before and after the first block is overwritten: there is room for 46."""
    saved = Replay(tmp_path)
    saved.insert(num_blocks)
    saved.save(7)
    resumed, counters = resume(tmp_path)
    assert counters == {"num_blocks": num_blocks}
    assert_equal(resumed.buffer, saved.buffer)


def test_a_restored_replay_goes_on_and_forgets_as_the_other_does(tmp_path: pathlib.Path) -> None:
    """Chains begin anew in both; from then on they are the same, saved again and again."""
    one, number = Replay(tmp_path), 0
    other = Replay(tmp_path / "never saved")
    rng = np.random.default_rng(0)
    for number in range(12):
        count = int(rng.integers(0, 30))
        for replay in (one, other):
            replay._is_start[:] = True
            replay.insert(count, seed=number)
        one.save(number)
        one, counters = resume(tmp_path)
        assert counters is not None
        assert_equal(one.buffer, other.buffer)
        numbers = other.buffer.state(other.buffer.num_blocks).first + np.arange(46)
        priorities = rng.random(46)
        assert one.buffer.update(numbers, priorities) == other.buffer.update(numbers, priorities)


def test_each_block_is_written_once_and_old_ones_go(tmp_path: pathlib.Path) -> None:
    """Incremental, with a checkpoint in between; what a killed process left goes as well."""
    replay = Replay(tmp_path)
    (tmp_path / "replay").mkdir()
    for name in ("unfinished", "blocks-0-4-left", "ckpt-3"):
        (tmp_path / "replay" / name).touch()
    written: list[tuple[int, int]] = []
    read_blocks = replay.buffer.read_blocks

    def note(first: int, end: int) -> list[np.ndarray]:
        written.append((first, end))
        return read_blocks(first, end)

    replay.buffer.read_blocks = note  # type: ignore[method-assign]
    for number in range(60):
        replay.insert(5)
        replay.save(number)
        ranges = [re.findall(r"\d+", name)[:2] for name in replay.files if "blocks" in name]
        ends = sorted(int(end) for _, end in ranges)
        assert ends[0] > replay.buffer.first_block
        assert [name for name in replay.files if "blocks" not in name] == [f"ckpt-{number}"]
    assert [first for first, _ in written] == [0, *[end for _, end in written[:-1]]]
    assert written[-1][1] == 300


def test_nobody_waits_for_more_than_a_segment_to_be_copied(
    tmp_path: pathlib.Path, small_segments: int
) -> None:
    """Nothing is compressed or written while others can't use the buffer."""
    replay = Replay(tmp_path)
    copied: list[int] = []
    read_blocks, write_segment = replay.buffer.read_blocks, storage_module.write_segment

    def read(first: int, end: int) -> list[np.ndarray]:
        assert replay.lock.locked()
        arrays = read_blocks(first, end)
        copied.append(sum(array.nbytes for array in arrays))
        return arrays

    def write(*args: Any) -> int:
        assert not replay.lock.locked()
        return write_segment(*args)

    replay.buffer.read_blocks = read  # type: ignore[method-assign]
    storage_module.write_segment = write
    try:
        replay.insert(46)
        replay.save(1)
    finally:
        storage_module.write_segment = write_segment
    assert sum(copied) == 46 * BLOCK_BYTES
    assert max(copied) <= small_segments


def test_a_thread_writes_blocks_as_they_come(tmp_path: pathlib.Path) -> None:
    """So that a checkpoint has to write less than a segment of blocks, and its manifest."""
    replay, stop = Replay(tmp_path), threading.Event()
    thread = threading.Thread(target=replay.storage.run, args=(stop,))
    thread.start()
    for _ in range(10):
        replay.insert(19)
        deadline = time.monotonic() + 20
        while replay.buffer.num_blocks - replay.storage._next >= 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    before = set(replay.files)
    replay.save(1)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert {re.sub("-[0-9a-f]{8}$", "", name) for name in set(replay.files) - before} == {
        "blocks-188-190",
        "ckpt-1",
    }
    assert_equal(resume(tmp_path)[0].buffer, replay.buffer)


def test_a_disk_that_is_too_slow_costs_the_newest_blocks(
    tmp_path: pathlib.Path, monkeypatch: Any, caplog: Any
) -> None:
    """Rather than stopping training for long: what is saved is consistent."""
    replay = Replay(tmp_path)
    replay.insert(46)
    replay.save(1)
    replay.insert(20)
    monkeypatch.setattr(storage_module, "_FLUSH_SECS", -1)
    replay.save(2)
    assert "lacks the newest 20 blocks" in caplog.text
    resumed, counters = resume(tmp_path)
    assert counters is not None
    assert resumed.buffer.num_blocks == 46
    state = resumed.buffer.state(46)
    np.testing.assert_array_equal(state.priorities[20:], replay.buffer.state(46).priorities)
    assert not state.priorities[:20].any()  # they were overwritten meanwhile
    # All were overwritten: there is nothing, and it goes on from there.
    replay.insert(60)
    replay.save(3)
    resumed, counters = resume(tmp_path)
    assert counters is not None
    assert resumed.buffer.num_unrolls == 0
    monkeypatch.undo()
    for one, number in ((resumed, 4), (replay, 5)):
        one.insert(90)
        one.save(number)
        assert_equal(resume(tmp_path)[0].buffer, one.buffer)


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("steps", range(0, 21, 2))
def test_whenever_it_ends_there_is_a_whole_state(
    tmp_path: pathlib.Path, monkeypatch: Any, steps: int
) -> None:
    """The process ends before one of its changes to files: the newest checkpoint has its replay."""
    replay = Replay(tmp_path)
    replay.insert(40)
    replay.save(1)
    wanted = resume(tmp_path)[0]
    left = steps

    def count(function: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return function(*args, **kwargs)

        return counted

    for name in ("replace", "remove"):
        monkeypatch.setattr(os, name, count(getattr(os, name)))
    monkeypatch.setattr(pathlib.Path, "touch", count(pathlib.Path.touch))
    replay.insert(40)
    try:
        replay.save(2)
        left = 0
    except Killed:
        assert left < 0
    monkeypatch.undo()
    resumed, counters = resume(tmp_path)
    assert counters is not None
    assert_equal(resumed.buffer, (replay if newest(tmp_path) == 2 else wanted).buffer)
    # And from there it goes on, whatever was left.
    resumed.insert(20)
    resumed.save(3)
    assert_equal(resume(tmp_path)[0].buffer, resumed.buffer)
    assert len([name for name in resumed.files if name.startswith("ckpt-")]) == 1


KILLED = """
import pathlib, sys, threading
sys.path.insert(0, sys.argv[2])
from test_storage import Replay, storage_module, BLOCK_BYTES
storage_module._SEGMENT_BYTES = 4 * BLOCK_BYTES
replay = Replay(pathlib.Path(sys.argv[1]))
threading.Thread(target=replay.storage.run, args=(threading.Event(),), daemon=True).start()
for number in range(1, 100_000):
    replay.insert(17, seed=1)
    replay.save(number)
    print(number, flush=True)
"""


def test_kill_in_the_middle_leaves_a_whole_state(tmp_path: pathlib.Path) -> None:
    """A real process, at some time: what it inserts depends on nothing but its number."""
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(pathlib.Path(__file__).parent)]
    for saves in (3, 11):
        folder = tmp_path / str(saves)
        folder.mkdir()
        command[3] = str(folder)
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(saves):
                assert process.stdout.readline()
            time.sleep(0.003 * saves)
            process.kill()
        resumed, counters = resume(folder)
        assert counters is not None
        again = Replay(tmp_path)
        for _ in range(newest(folder)):
            again.insert(17, seed=1)
        assert_equal(resumed.buffer, again.buffer)


def damage(path: pathlib.Path, how: str) -> None:
    raw = path.read_bytes()
    half = len(raw) // 2
    match how:
        case "missing":
            path.unlink()
        case "cut off":
            path.write_bytes(raw[:half])
        case "changed":
            path.write_bytes(raw[:half] + bytes([raw[half] ^ 64]) + raw[half + 1 :])
        case "empty":
            path.write_bytes(b"")


@pytest.mark.parametrize("how", ["missing", "cut off", "changed", "empty"])
@pytest.mark.parametrize("which", ["blocks-8-12-", "ckpt-1"])
def test_damage_is_named_and_costs_the_replay(
    tmp_path: pathlib.Path, caplog: Any, which: str, how: str
) -> None:
    """The run goes on, and the next checkpoint is whole again."""
    replay = Replay(tmp_path)
    replay.insert(40)
    replay.save(1)
    (path,) = (tmp_path / "replay").glob(f"{which}*")
    damage(path, how)
    resumed, counters = resume(tmp_path)
    assert counters is None
    (warning,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
    text = warning.getMessage()
    assert (str(path) in text) or (text == "checkpoint 1 has no replay with it: starting with none")
    assert resumed.buffer.num_blocks == resumed.buffer.num_unrolls == 0
    resumed.insert(100)
    resumed.save(2)
    assert_equal(resume(tmp_path)[0].buffer, resumed.buffer)


def test_a_file_of_other_blocks_is_no_whole_file(tmp_path: pathlib.Path, caplog: Any) -> None:
    replay = Replay(tmp_path)
    replay.insert(40)
    replay.save(1)
    (source,) = (tmp_path / "replay").glob("blocks-8-12-*")
    (target,) = (tmp_path / "replay").glob("blocks-12-16-*")
    target.write_bytes(source.read_bytes())
    assert resume(tmp_path)[1] is None
    assert str(target) in caplog.text


def test_any_changed_byte_of_a_manifest_is_survived(tmp_path: pathlib.Path) -> None:
    """It raises nothing, and never changes a priority."""
    replay = Replay(tmp_path)
    replay.insert(12)
    replay.save(1)
    path = tmp_path / "replay/ckpt-1"
    raw = path.read_bytes()
    logging.disable(logging.WARNING)
    try:
        for position in range(len(raw)):
            path.write_bytes(raw[:position] + bytes([raw[position] ^ 255]) + raw[position + 1 :])
            resumed, counters = resume(tmp_path)
            if counters is not None:
                assert_equal(resumed.buffer, replay.buffer)
    finally:
        logging.disable(logging.NOTSET)


def test_changed_settings_are_named_by_their_flags(tmp_path: pathlib.Path, caplog: Any) -> None:
    replay = Replay(tmp_path)
    replay.insert(40)
    replay.save(1)
    other = Replay(tmp_path, SETTINGS | {"--burn_in": 9})
    assert other.storage.restore(1) is None
    assert caplog.messages[-1] == "starting without the saved replay: --burn_in was 5 and is 9"
    # Nothing is lost for who then starts with the right ones.
    assert resume(tmp_path)[1] is not None


def test_a_folder_that_cannot_be_written_costs_the_replay_only(
    tmp_path: pathlib.Path, caplog: Any, monkeypatch: Any
) -> None:
    """Checkpoints go on without, and the thread tries again."""
    replay, stop = Replay(tmp_path), threading.Event()
    (tmp_path / "replay").touch()
    monkeypatch.setattr(storage_module, "_RETRY_SECS", 0.05)
    thread = threading.Thread(target=replay.storage.run, args=(stop,))
    thread.start()
    replay.insert(30)
    replay.save(1)
    assert "could not save the replay with checkpoint 1" in caplog.text
    deadline = time.monotonic() + 20
    while "could not write the replay, trying again" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert resume(tmp_path)[1] is None
    (tmp_path / "replay").unlink()
    while not (tmp_path / "replay").is_dir():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    replay.save(2)
    stop.set()
    thread.join(10)
    assert_equal(resume(tmp_path)[0].buffer, replay.buffer)


def test_a_checkpoint_that_fails_leaves_the_one_before(tmp_path: pathlib.Path) -> None:
    replay = Replay(tmp_path)
    replay.insert(46)
    replay.save(1)
    wanted = resume(tmp_path)[0]
    replay.insert(46)
    with pytest.raises(OSError), replay.storage.saving(2, dict):
        raise OSError(28, "No space left on device")
    assert_equal(resume(tmp_path, 1)[0].buffer, wanted.buffer)
    replay.insert(46)
    replay.save(3)
    assert_equal(resume(tmp_path)[0].buffer, replay.buffer)
    assert "ckpt-2" not in replay.files
