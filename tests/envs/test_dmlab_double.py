"""That the double of DeepMind Lab keeps the contract which the real one was seen to keep."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import deepmind_lab
import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "tools/dmlab_double"
GOALS = "contributed/dmlab30/explore_goal_locations_small"
DESCRIBED = "contributed/dmlab30/language_select_described_object"
FORWARD = np.array([0, 0, 0, 1, 0, 0, 0], np.intc)
RGB = "RGB_INTERLEAVED"


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LP_NUM_THREADS", "0")


def make(level: str = GOALS, observations: Any = (RGB, "INSTR"), **config: Any) -> Any:
    config = {"width": "96", "height": "72"} | config
    return deepmind_lab.Lab(level, list(observations), config=config)


def died(script: str, **environment: str) -> tuple[int, str]:
    """Exit code and stderr of a process that runs the script with a Lab to be made."""
    start = f"""
        import os, numpy as np, deepmind_lab
        def make(**kwargs):
            return deepmind_lab.Lab({GOALS!r}, [{RGB!r}], {{"width": "96"}}, **kwargs)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(start) + textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": str(FOLDER), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return result.returncode, result.stderr


def test_it_is_the_double_that_is_tested() -> None:
    assert pathlib.Path(deepmind_lab.__file__).parent == FOLDER


def test_life_cycle() -> None:
    lab = make()
    assert not lab.is_running()
    for call in (lab.observations, lambda: lab.step(FORWARD)):
        with pytest.raises(RuntimeError):
            call()
    assert lab.reset(episode=0, seed=1) is True
    assert lab.is_running()
    reward = lab.step(FORWARD, num_steps=4)
    assert type(reward) is float
    assert lab.num_steps() == 4
    assert lab.events() == []
    lab.step(FORWARD, num_steps=5396)
    assert not lab.is_running()  # and there is no observation of the end
    for call in (lab.observations, lambda: lab.step(FORWARD)):
        with pytest.raises(RuntimeError):
            call()
    lab.reset()
    assert lab.is_running()
    assert lab.close() is True
    assert lab.close() is False
    assert not lab.is_running()
    with pytest.raises(RuntimeError):
        lab.observations()
    assert not hasattr(lab, "fps")


def test_observations_are_fresh_and_of_their_types() -> None:
    lab = make(DESCRIBED)
    lab.reset(seed=3)
    seen = lab.observations()
    assert seen.keys() == {RGB, "INSTR"}
    assert seen[RGB].shape == (72, 96, 3)
    assert seen[RGB].dtype == np.uint8
    assert type(seen["INSTR"]) is str
    assert len(seen["INSTR"]) > 5
    kept = seen[RGB].copy()
    assert lab.observations()[RGB] is not seen[RGB]
    lab.step(FORWARD)
    assert np.array_equal(seen[RGB], kept)
    assert not np.array_equal(lab.observations()[RGB], kept)
    assert make().observation_spec()[0]["shape"] == (72, 96, 3)
    limits = [(-512, 512), (-512, 512), (-1, 1), (-1, 1), (0, 1), (0, 1), (0, 1)]
    assert [(part["min"], part["max"]) for part in lab.action_spec()] == limits


def test_seeds() -> None:
    """The same seed shows the same in a fresh environment, and not at a second reset."""

    def play(lab: Any) -> list[np.ndarray]:
        lab.reset(episode=0, seed=7)
        frames = []
        for _ in range(5):
            lab.step(FORWARD, num_steps=4)
            frames.append(lab.observations()[RGB])
        return frames

    lab = make()
    once, again, fresh = play(lab), play(lab), play(make())
    assert np.array_equal(once, fresh)
    assert not np.array_equal(once, again)
    for seed in (np.int64(7), "7", 7.0):
        with pytest.raises(ValueError, match="'seed' must be int or None"):
            lab.reset(seed=seed)
    with pytest.raises(TypeError):
        lab.reset(episode="0", seed=7)


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (RuntimeError, "Level not found: nowhere", {"level": "nowhere"}),
        (ValueError, r"Unknown observation 'NOPE'\.", {"observations": ["NOPE"]}),
        (TypeError, None, {"observations": (RGB,)}),
        (TypeError, None, {"config": {"width": 96}}),
        (TypeError, None, {"config": {"width": b"96"}}),
        (RuntimeError, "multiple of 4", {"config": {"width": "94"}}),
        (RuntimeError, "width = 0", {"config": {"width": "0"}}),
        (RuntimeError, "width = -4", {"config": {"width": "-4"}}),
        (RuntimeError, "renderer", {"renderer": "gpu"}),
        (TypeError, None, {"renderer": None}),
        (
            RuntimeError,
            "Hold-out",
            {"level": "contributed/dmlab30/rooms_collect_good_objects_test"},
        ),
        (RuntimeError, "datasetPath", {"level": "contributed/dmlab30/psychlab_visual_search"}),
    ],
)
def test_what_is_refused_at_the_start(
    error: type[Exception], message: str | None, arguments: dict[str, Any]
) -> None:
    with pytest.raises(error, match=message):
        deepmind_lab.Lab(**{"level": GOALS, "observations": [RGB], "config": {}} | arguments)


def test_levels_that_need_settings(tmp_path: pathlib.Path) -> None:
    make("contributed/dmlab30/rooms_collect_good_objects_test", allowHoldOutLevels="true")
    make("contributed/dmlab30/psychlab_visual_search", datasetPath=str(tmp_path))


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (TypeError, [0] * 7),
        (ValueError, np.zeros(7, np.int64)),
        (ValueError, np.zeros(7, np.float32)),
        (ValueError, np.zeros(6, np.intc)),
        (ValueError, np.zeros((1, 7), np.intc)),
    ],
)
def test_actions_that_are_refused(error: type[Exception], action: Any) -> None:
    lab = make()
    lab.reset(seed=0)
    with pytest.raises(error):
        lab.step(action)


def test_each_one_leaks_descriptors() -> None:
    count = len(os.listdir("/proc/self/fd"))
    make().close()
    assert len(os.listdir("/proc/self/fd")) == count + 6


class Cache:
    def __init__(self, fetched: Any = False) -> None:
        self.fetched, self.calls = fetched, []

    def fetch(self, key: str, pk3_path: str) -> Any:
        assert type(key) is type(pk3_path) is str
        self.calls.append("fetch")
        if isinstance(self.fetched, Exception):
            raise self.fetched
        return self.fetched

    def write(self, key: str, pk3_path: str) -> None:
        self.calls.append("write")
        if isinstance(self.fetched, str):
            raise OSError(self.fetched)
        assert os.path.getsize(pk3_path) > 100_000


def test_level_cache_protocol() -> None:
    cache = Cache()
    lab = deepmind_lab.Lab(GOALS, [RGB], {"width": "96"}, level_cache=cache)
    assert cache.calls == []
    lab.reset(seed=1)
    assert cache.calls == ["fetch", "write"]
    for failing in (Cache(OSError("no")), Cache("")):
        lab = deepmind_lab.Lab(GOALS, [RGB], {"width": "96"}, level_cache=failing)
        with pytest.raises(OSError):
            lab.reset(seed=1)
        assert not lab.is_running()


FETCH = """
class Cache:
    def fetch(self, key, pk3_path):
        {}
        return True
make(level_cache=Cache()).reset(seed=1)
"""


@pytest.mark.parametrize(
    ("code", "script"),
    [
        (96, FETCH.format("pass")),
        (96, FETCH.format("open(pk3_path, 'wb').write(b'PK cut')")),
        (95, "lab = make(); lab.reset(seed=1); lab.step(np.zeros(14, np.intc)[::2])"),
        (94, "lab = make(); lab.reset(seed=1); lab.step(np.full(7, 2, np.intc))"),
        (98, "make().reset(seed=2**31)"),
        (97, "make(); os.fork()"),
    ],
)
def test_what_ends_the_process(code: int, script: str) -> None:
    returncode, stderr = died(script, LP_NUM_THREADS="2")
    assert returncode == code, stderr
    assert "a real build would" in stderr


def test_forks_that_do_no_harm() -> None:
    fork = "\nif os.fork() == 0:\n    os._exit(0)\nos.wait()"
    assert died(fork, LP_NUM_THREADS="2") == (0, "")
    assert died("make()" + fork, LP_NUM_THREADS="0") == (0, "")
