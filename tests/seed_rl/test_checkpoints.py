"""Checkpoints: whole or not at all, the right network or a clear error."""

from __future__ import annotations

import glob
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from seed_rl.agents import registry as agents
from seed_rl.checkpoints import CheckpointError, Checkpoints, DamagedCheckpointError
from seed_rl.optimizers import Optimizer
from seed_rl.specs import ArraySpec, EnvironmentSpecs

VECTORS = EnvironmentSpecs(ArraySpec((3,), "float32"), ArraySpec((), "int32", 0, 2))
DATA = ".data-00000-of-00001"


class Run:
    """The parts that a learner saves."""

    def __init__(self, directory: Path, seed: int = 0, **options: Any) -> None:
        algorithm = agents.load("vtrace")
        config = algorithm.Config(**options)
        self.agent: Any = algorithm.make(config, VECTORS, seed)
        self.optimizer = Optimizer(config, list(self.agent.trainable_variables), 100)
        self.frames = tf.Variable(0, dtype=tf.int64)
        self.checkpoints = Checkpoints(
            str(directory),
            {"agent": self.agent, "optimizer": self.optimizer, "frames": self.frames},
        )

    def train(self) -> None:
        rng = np.random.default_rng(int(self.frames))
        gradients = [
            tf.constant(rng.standard_normal(variable.shape), tf.float32)
            for variable in self.agent.trainable_variables
        ]
        assert self.optimizer.apply(tf.constant(1.0), gradients).applied
        self.frames.assign_add(100)

    def values(self) -> list[np.ndarray]:
        """All that must survive: weights, the optimizer's own variables, the counter."""
        state = [variable.numpy() for variable in self.optimizer.variables]
        return [np.asarray(value).copy() for value in [*self.agent.variables, *state, self.frames]]


class Small(tf.Module):
    """A part that is quick to save."""

    def __init__(self, value: float = 0, size: int = 4) -> None:
        super().__init__()
        self.value = tf.Variable(tf.fill([size], float(value)))


def small(directory: Path, value: float = 0) -> tuple[Small, Checkpoints]:
    part = Small(value)
    return part, Checkpoints(str(directory), {"part": part})


def save_some(directory: Path, *numbers: int) -> None:
    """Checkpoint n holds n."""
    part, checkpoints = small(directory)
    for number in numbers:
        part.value.assign(tf.fill([4], float(number)))
        checkpoints.save(number)


def damage(path: str, kind: str) -> None:
    name = path + (".index" if "index" in kind else DATA)
    with open(name, "rb") as file:
        content = bytearray(file.read())
    if kind.startswith("truncated"):
        content = content[: len(content) // 2]
    elif kind.startswith("empty"):
        content = bytearray()
    else:
        content[3] ^= 0x10
    with open(name, "wb") as file:
        file.write(content)


@pytest.mark.parametrize("decay", [True, False])
def test_a_changed_learning_rate_is_not_undone(tmp_path: Path, decay: bool) -> None:
    """It is a setting, not something that was learned."""
    Run(tmp_path, learning_rate=0.1, learning_rate_decay=True).checkpoints.save(1)
    run = Run(tmp_path, learning_rate=0.2, learning_rate_decay=decay)
    run.checkpoints.restore_latest()
    zeros = [tf.zeros(variable.shape) for variable in run.agent.trainable_variables]
    for _ in range(2):
        rate = run.optimizer.apply(tf.constant(1.0), zeros).learning_rate
    np.testing.assert_allclose(rate, 0.2 * 0.99 if decay else 0.2, rtol=1e-6)
    run.checkpoints.save(2)
    again = Run(tmp_path, learning_rate=0.3, learning_rate_decay=False)
    again.checkpoints.restore_latest()
    rate = again.optimizer.apply(tf.constant(1.0), zeros).learning_rate
    np.testing.assert_allclose(rate, 0.3, rtol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_everything_comes_back(tmp_path: Path, optimizer: str) -> None:
    """Cases 66 and 126: and training goes on as if it had never stopped."""
    options = {"optimizer": optimizer, "lstm_size": 4}
    run = Run(tmp_path, seed=1, **options)
    for _ in range(3):
        run.train()
    saved = run.values()
    path = run.checkpoints.save(3)
    run.train()

    other = Run(tmp_path, seed=2, **options)
    assert any((a != b).any() for a, b in zip(saved, other.values(), strict=True))
    assert other.checkpoints.restore_latest() == path
    for one, wanted in zip(other.values(), saved, strict=True):
        np.testing.assert_array_equal(one, wanted)
    assert int(other.optimizer.num_updates) == 3
    other.train()
    for one, wanted in zip(other.values(), run.values(), strict=True):
        np.testing.assert_array_equal(one, wanted)


def test_an_empty_or_missing_directory_has_no_checkpoint(tmp_path: Path) -> None:
    assert small(tmp_path)[1].restore_latest() is None
    assert small(tmp_path / "missing")[1].restore_latest() is None


def test_the_newest_few_are_kept_across_restarts(tmp_path: Path) -> None:
    save_some(tmp_path, 1, 2, 9)
    save_some(tmp_path, 10, 11)
    names = [path.name for path in tmp_path.glob("ckpt-*")]
    assert sorted(name for name in names if name.endswith(".index")) == [
        f"ckpt-{number}.index" for number in (10, 11, 9)
    ]
    assert len(names) == 6
    part, checkpoints = small(tmp_path)
    assert checkpoints.restore_latest() == str(tmp_path / "ckpt-11")  # by number, not by letter
    assert (part.value.numpy() == 11).all()


@pytest.mark.parametrize("name", ["a[1]", "a\\b"])
def test_names_of_folders_that_tensorflow_takes_for_patterns(tmp_path: Path, name: str) -> None:
    """Or a run would not find its checkpoints, and silently start anew."""
    with pytest.raises(CheckpointError, match="choose another --logdir"):
        small(tmp_path / name)


@pytest.mark.parametrize("name", ["a*b", "a?", "{a}", "a]", "two words", "ü"])
def test_any_other_name_of_a_folder(tmp_path: Path, name: str) -> None:
    save_some(tmp_path / name, 1, 2, 3, 4, 5)
    part, checkpoints = small(tmp_path / name)
    assert checkpoints.restore_latest() == str(tmp_path / name / "ckpt-5")
    assert (part.value.numpy() == 5).all()
    assert len(list((tmp_path / name).glob("*.index"))) == 3


def test_files_of_other_names_do_no_harm(tmp_path: Path) -> None:
    save_some(tmp_path, 1)
    for name in ("ckpt-best.index", "ckpt-2-copy.index", "ckpt-3.index.bak", "ckpt-.index"):
        (tmp_path / name).write_bytes(b"?")
    assert small(tmp_path)[1].restore_latest() == str(tmp_path / "ckpt-1")


@pytest.mark.parametrize(
    "kind",
    [
        "truncated data",
        "truncated index",
        "empty data",
        "empty index",
        "byte of data",
        "byte of index",
    ],
)
def test_of_a_damaged_one_the_one_before_is_used(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 126."""
    save_some(tmp_path, 1, 2)
    damage(str(tmp_path / "ckpt-2"), kind)
    part, checkpoints = small(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert checkpoints.restore_latest() == str(tmp_path / "ckpt-1")
    assert (part.value.numpy() == 1).all()
    assert f"{tmp_path}/ckpt-2 is damaged" in caplog.text
    with pytest.raises(DamagedCheckpointError, match="ckpt-2 is damaged"):
        checkpoints.restore(str(tmp_path / "ckpt-2"))
    assert (part.value.numpy() == 1).all()


def test_data_that_is_missing_is_damage(tmp_path: Path) -> None:
    save_some(tmp_path, 1, 2)
    os.remove(tmp_path / f"ckpt-2{DATA}")
    assert small(tmp_path)[1].restore_latest() == str(tmp_path / "ckpt-1")


@pytest.mark.parametrize("suffix", [".index", DATA])
def test_no_single_byte_changes_a_value_unnoticed(tmp_path: Path, suffix: str) -> None:
    """Case 126: wherever a bit is flipped or the file is cut."""
    save_some(tmp_path, 5)
    path = str(tmp_path / "ckpt-5")
    with open(path + suffix, "rb") as file:
        whole = file.read()
    part, checkpoints = small(tmp_path)
    num_damaged = 0
    positions = range(0, len(whole), max(1, len(whole) // 60))
    for position in positions:
        flipped = bytearray(whole)
        flipped[position] ^= 0x10
        for content in (flipped, whole[:position]):
            with open(path + suffix, "wb") as file:
                file.write(content)
            part.value.assign(tf.zeros([4]))
            try:
                checkpoints.restore(path)
            except DamagedCheckpointError:
                num_damaged += 1
                assert (part.value.numpy() == 0).all()
            else:  # a byte that says nothing
                assert (part.value.numpy() == 5).all()
    assert num_damaged > 1.5 * len(positions)


def test_all_damaged_is_an_error(tmp_path: Path) -> None:
    """Case 126: never a silent new start over a run's weights."""
    save_some(tmp_path, 1, 2)
    for number in (1, 2):
        damage(str(tmp_path / f"ckpt-{number}"), "truncated data")
    with pytest.raises(CheckpointError, match=r"all 2 checkpoints in .* are damaged; move them"):
        small(tmp_path)[1].restore_latest()


def test_damaged_ones_do_not_drive_out_good_ones(tmp_path: Path) -> None:
    save_some(tmp_path, 1, 7, 8, 9)
    save_some(tmp_path, 1)  # which the last of the four has driven out
    for number in (7, 8, 9):
        damage(str(tmp_path / f"ckpt-{number}"), "truncated index")
    part, checkpoints = small(tmp_path)
    assert checkpoints.restore_latest() == str(tmp_path / "ckpt-1")
    checkpoints.save(2)
    part.value.assign(tf.zeros([4]))
    assert checkpoints.restore_latest() == str(tmp_path / "ckpt-2")


def test_another_network_is_refused_with_the_names_that_differ(tmp_path: Path) -> None:
    """Cases 4 and 78."""
    Run(tmp_path, lstm_size=4).checkpoints.save(1)
    other = Run(tmp_path, lstm_size=8)
    before = other.values()
    with pytest.raises(CheckpointError, match="is of another network") as info:
        other.checkpoints.restore_latest()
    assert not isinstance(info.value, DamagedCheckpointError)
    lines = str(info.value).splitlines()[1:]
    policy = "agent/_policy/_kernel"
    assert f"  {policy}: float32[4, 3] in the checkpoint, float32[8, 3] here" in lines
    assert not any("_torso" in line for line in lines if line.startswith("  agent/"))
    for one, wanted in zip(other.values(), before, strict=True):
        np.testing.assert_array_equal(one, wanted)

    with pytest.raises(CheckpointError) as info:
        Run(tmp_path).checkpoints.restore_latest()
    assert re.search(
        r"agent/_body/_lstm/\w+: float32\[.*\] in the checkpoint, absent here", str(info.value)
    )
    with pytest.raises(CheckpointError, match=r"_slots/adam_mean/\d+: .*absent"):
        Run(tmp_path, lstm_size=4, optimizer="rmsprop").checkpoints.restore_latest()


def test_an_agent_alone_is_restored_from_that_of_a_run(tmp_path: Path) -> None:
    """Case 78: and the checkpoint of an agent alone is not enough for a run."""
    run = Run(tmp_path / "run", seed=1)
    run.train()
    path = run.checkpoints.save(1)
    other = Run(tmp_path / "other", seed=2)
    only_agent = Checkpoints(str(tmp_path / "other"), {"agent": other.agent})
    only_agent.restore(path)
    for one, wanted in zip(other.agent.variables, run.agent.variables, strict=True):
        np.testing.assert_array_equal(one, wanted)
    assert int(other.optimizer.num_updates) == int(other.frames) == 0

    only_agent.save(1)
    with pytest.raises(CheckpointError, match="frames: absent in the checkpoint"):
        other.checkpoints.restore_latest()


@pytest.mark.parametrize("name", ["ckpt-7", "ckpt-1.index", "", "../nowhere/ckpt-1"])
def test_a_checkpoint_that_is_not_there(tmp_path: Path, name: str) -> None:
    """That is not damage, and the message says what to type."""
    save_some(tmp_path, 1)
    path = os.path.join(tmp_path, name)
    with pytest.raises(CheckpointError, match=r"there is no checkpoint .*ckpt-N") as info:
        small(tmp_path)[1].restore(path)
    assert path in str(info.value)
    assert not isinstance(info.value, DamagedCheckpointError)


# Forks before TensorFlow starts its threads: importing it once is slow enough.
KILLED = """
import os, random, signal, sys, time
import tensorflow as tf
from seed_rl.checkpoints import Checkpoints

directory, trials = sys.argv[1], int(sys.argv[2])

def save_for_ever(started):
    part = tf.Module()
    part.value = tf.Variable(tf.zeros([300_000]))
    checkpoints = Checkpoints(directory, {"part": part})
    number = 0
    if checkpoints.restore_latest():
        number = int(part.value[0])
        assert number > 0 and (part.value.numpy() == number).all()
    while True:
        number += 1
        part.value.assign(tf.fill([300_000], float(number)))
        checkpoints.save(number)
        if started is not None:
            os.write(started, b"1")
            started = None

for trial in range(trials):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        try:
            save_for_ever(write)
        finally:
            os._exit(1)
    os.close(write)
    assert os.read(read, 1) == b"1", "the child could not restore or save"
    os.close(read)
    time.sleep(random.Random(trial).uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), status
"""


def test_a_kill_in_the_middle_of_a_save_leaves_the_one_before(tmp_path: Path) -> None:
    """Cases 66 and 126: kill -9 at random moments of saving on and on, each time resumed."""
    trials = 5
    subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(trials)], check=True, timeout=150
    )
    part = Small(size=300_000)
    checkpoints = Checkpoints(str(tmp_path), {"part": part})
    assert checkpoints.restore_latest() is not None
    number = int(part.value[0])
    assert number >= trials
    assert (part.value.numpy() == number).all()
    # What was cut off does not stay for ever.
    checkpoints.save(number + 1)
    assert len(glob.glob(f"{tmp_path}/*")) == 2 * 3
