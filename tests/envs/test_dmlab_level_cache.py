"""DeepMind Lab's level cache: whole files or none, and failures that end nothing."""

from __future__ import annotations

import io
import logging
import os
import pathlib
import subprocess
import sys
import zipfile
from typing import Any

import numpy as np
import pytest

from seed_rl.envs import dmlab
from seed_rl.envs.dmlab import level_cache
from seed_rl.envs.dmlab.level_cache import LevelCache

DOUBLE = pathlib.Path(__file__).parents[1] / "tools/dmlab_double"


def pk3(content: bytes = b"a map") -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(zipfile.ZipInfo("maps/level.bsp"), content)
    return data.getvalue()


@pytest.fixture
def compiled(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "compiled.pk3"
    path.write_bytes(pk3())
    return str(path)


@pytest.fixture
def target(tmp_path: pathlib.Path) -> pathlib.Path:
    """Where DeepMind Lab wants a level."""
    (tmp_path / "lab").mkdir()
    return tmp_path / "lab/level.pk3"


@pytest.fixture
def log(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A file in which the double writes what it compiles."""
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("LP_NUM_THREADS", "0")
    monkeypatch.setenv("DMLAB_DOUBLE_LOG", str(path))
    return path


def play(folder: Any, seed: int = 1) -> np.ndarray:
    """First frames of two environments in a fresh process's stead, `[2, 12, 16, 3]`."""
    config = dmlab.Config(width=16, height=12, level_cache_dir=str(folder))
    environments = dmlab.make(config, range(2), seed)
    frames = environments.reset().observation
    environments.close()
    return frames


def test_a_hit_avoids_the_compilation(tmp_path: pathlib.Path, log: pathlib.Path) -> None:
    """Case 109: and changes nothing else."""
    folder = tmp_path / "not/there/yet"
    missed = play(folder)
    keys = log.read_text().splitlines()
    assert len(set(keys)) == len(keys) == 2
    hit = play(folder)
    assert log.read_text().splitlines() == keys
    assert np.array_equal(hit, missed)
    files = list(folder.iterdir())
    assert len(files) == 2
    assert all(zipfile.ZipFile(file).testzip() is None for file in files)
    play(folder, seed=2)  # other levels
    assert len(log.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    "key", ["a", "a/b", "../../etc", "*?\n:\0", "x" * 5000, "", ".", "größe", "\udcff"]
)
def test_any_key_is_a_file_in_the_folder(
    tmp_path: pathlib.Path, compiled: str, target: pathlib.Path, key: str
) -> None:
    folder = tmp_path / "cache"
    cache = LevelCache(str(folder))
    cache.write(key, compiled)
    assert len(list(folder.iterdir())) == 1
    assert cache.fetch(key, str(target)) is True
    assert target.read_bytes() == pk3()
    target.unlink()
    assert cache.fetch(f"{key} ", str(target)) is False
    assert not target.exists()


WRITER = """
import sys
from seed_rl.envs.dmlab.level_cache import LevelCache
cache = LevelCache(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(60):
    cache.write("key", sys.argv[2])
"""


def test_processes_that_write_the_same_key_leave_a_whole_file(
    tmp_path: pathlib.Path, target: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 109: and a reader meanwhile sees the level of one or of the other."""
    whole = [pk3(bytes([number]) * 3_000_000) for number in range(2)]
    folder = tmp_path / "cache"
    writers = []
    for number, data in enumerate(whole):
        path = tmp_path / f"{number}.pk3"
        path.write_bytes(data)
        writers.append(
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(folder), str(path)],
                env={**os.environ, "PYTHONPATH": str(DOUBLE)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    cache, seen = LevelCache(str(folder)), 0
    while any(writer.poll() is None for writer in writers):
        if cache.fetch("key", str(target)):
            assert target.read_bytes() in whole
            seen += 1
    for writer in writers:
        assert writer.wait() == 0
        writer.stdin.close()
        writer.stdout.close()
    assert seen > 3
    (file,) = folder.iterdir()
    assert file.read_bytes() in whole
    assert not caplog.records


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_a_folder_that_can_not_be_used(
    tmp_path: pathlib.Path, log: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 109: a warning for reading and one for writing, and episodes go on."""
    (tmp_path / "file").write_text("no folder")
    play(tmp_path / "file")
    read, write = warnings(caplog)
    assert f"can't read from the level cache {tmp_path}/file, so that levels are compiled" in read
    assert "NotADirectoryError" in read
    assert f"can't write to the level cache {tmp_path}/file" in write
    assert len(log.read_text().splitlines()) == 2


def test_a_full_disk(
    tmp_path: pathlib.Path,
    compiled: str,
    target: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither a part of the level nor a scratch file stays behind."""
    folder = tmp_path / "cache"
    LevelCache(str(folder)).write("old", compiled)

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            super().write(data[:10])
            raise OSError(28, "No space left on device")

    def open_full(path: Any, mode: str = "r", **kwargs: Any) -> Any:
        return Full(path, mode) if "x" in mode else open(path, mode, **kwargs)

    monkeypatch.setattr(level_cache, "open", open_full, raising=False)
    cache = LevelCache(str(folder))
    for _ in range(3):
        cache.write("key", compiled)
        assert cache.fetch("key", str(target)) is False
        assert cache.fetch("old", str(target)) is False
    assert len(list(folder.iterdir())) == 1
    assert list(target.parent.iterdir()) == []
    assert [text.count("No space left on device") for text in warnings(caplog)] == [1, 1]


@pytest.mark.parametrize("size", [0, 1, 100, -1])
def test_a_cut_file_is_a_miss_and_is_mended(
    tmp_path: pathlib.Path, log: pathlib.Path, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """The double would end the process if it were given a part of a level."""
    folder = tmp_path / "cache"
    play(folder)
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:size])
    play(folder)
    assert len(log.read_text().splitlines()) == 4
    (warning,) = warnings(caplog)
    assert "wanted a whole pk3 file" in warning
    play(folder)
    assert len(log.read_text().splitlines()) == 4


def test_what_is_no_level_is_not_kept(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = LevelCache(str(tmp_path / "cache"))
    (tmp_path / "cut.pk3").write_bytes(pk3()[:-1])
    cache.write("key", str(tmp_path / "cut.pk3"))
    cache.write("key", str(tmp_path / "missing.pk3"))
    assert not (tmp_path / "cache").exists()
    assert len(warnings(caplog)) == 2


def test_failures_of_any_kind_are_misses(
    tmp_path: pathlib.Path, target: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """DeepMind Lab would let an exception out of reset()."""
    cache: Any = LevelCache(str(tmp_path))
    (tmp_path / level_cache._file_name("key")).mkdir()
    assert cache.fetch("key", str(target)) is False
    assert cache.fetch(b"key", str(target)) is False
    assert cache.fetch("key", None) is False
    cache.write(b"key", str(target))
    cache.write("key", str(tmp_path))
    assert warnings(caplog)


REMOTE = """
import logging, sys
from seed_rl.envs import registry
logging.basicConfig(format="%(message)s")
family = registry.load("dmlab")
for folder in sys.argv[1:]:
    config = family.Config(width=16, height=12, level_cache_dir=folder)
    for _ in range(2):
        family.make(config, range(2), 1).reset()
"""


def test_remote_folders(log: pathlib.Path) -> None:
    """By tf.io.gfile, whose file system in memory takes the place of a bucket; and none at all."""
    result = subprocess.run(
        [sys.executable, "-c", REMOTE, "ram://bucket/levels/", "nonsense://bucket/levels"],
        env={**os.environ, "PYTHONPATH": str(DOUBLE)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    assert len(log.read_text().splitlines()) == 2 + 4
    lines = [line for line in result.stderr.splitlines() if "level cache" in line]
    assert len(lines) == 4
    for i, line in enumerate(lines):
        action = "write to" if i % 2 else "read from"
        assert f"can't {action} the level cache nonsense://bucket/levels" in line
        assert "UnimplementedError" in line
