"""DeepMind Lab's adapter, on the double that keeps the real one's contract."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import deepmind_lab
import numpy as np
import pytest

from seed_rl.envs import dmlab, registry
from seed_rl.envs.dmlab import instructions, levels
from seed_rl.envs.dmlab.environments import ACTIONS, DmlabEnvironments
from seed_rl.errors import UserError
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType

ROOT = pathlib.Path(__file__).parents[2]
DOUBLE = ROOT / "tests/tools/dmlab_double"
PATH = "contributed/dmlab30/"
FIRST, MID, TERMINATED = StepType.FIRST, StepType.MID, StepType.TERMINATED


@pytest.fixture(autouse=True)
def _small_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LP_NUM_THREADS", "0")
    monkeypatch.setenv("DMLAB_DOUBLE_FRAMES", "20")  # 5 steps


@pytest.fixture
def labs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All that are made, with what they are given in `arguments` and `calls`."""
    made: list[Any] = []

    class Lab(deepmind_lab.Lab):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            made.append(self)
            self.arguments, self.calls = (args, kwargs), []
            super().__init__(*args, **kwargs)

        def reset(self, **kwargs: Any) -> bool:
            self.calls.append(("reset", kwargs))
            return super().reset(**kwargs)

        def step(self, action: np.ndarray, **kwargs: Any) -> float:
            self.calls.append(("step", action.tolist(), kwargs))
            return super().step(action, **kwargs)

    monkeypatch.setattr(deepmind_lab, "Lab", Lab)
    return made


def make(n: int = 2, seed: int = 1, env_ids: Any = None, **options: Any) -> DmlabEnvironments:
    return dmlab.make(dmlab.Config(**options), env_ids or range(n), seed)


def forward(environments: DmlabEnvironments, n: int = 2) -> Any:
    return environments.step(np.zeros(n, np.int32))


def test_an_episode_from_reset_to_reset() -> None:
    """Cases 100 and 101: the last picture stands in for the one that there is not, then the next
    episode's comes; nothing that was returned changes afterwards."""
    environments = make()
    rows = [environments.reset()]
    rows += [forward(environments) for _ in range(12)]
    kept = [row.observation.copy() for row in rows]
    rows += [forward(environments) for _ in range(12)]
    for row, observation in zip(rows, kept, strict=False):
        assert np.array_equal(row.observation, observation)
    types = [FIRST, *[MID] * 4, TERMINATED] * 4
    assert [row.step_type.tolist() for row in rows[:24]] == [[kind] * 2 for kind in types]
    # The double paints number of episode and frame.
    episodes = [row.observation[1, 0, 0, 0] for row in rows[:24]]
    assert episodes == [1] * 6 + [2] * 6 + [3] * 6 + [4] * 6
    assert [row.observation[1, 0, 0, 1] for row in rows[:12]] == [0, 4, 8, 12, 16, 16] * 2
    for last, end in zip(rows[4::6], rows[5::6], strict=True):
        assert np.array_equal(last.observation, end.observation)
        assert not np.shares_memory(last.observation, end.observation)
    assert [row.reward[0] for row in rows[:7]] == [0, 0.5, 0.5, 0.5, 0.5, 0.5, 0]
    for row in rows:
        assert row.step_type.dtype == np.uint8
        assert row.reward.dtype == row.raw_reward.dtype == np.float32
        assert np.array_equal(row.reward, row.raw_reward)
        assert not np.shares_memory(row.reward, row.raw_reward)
        assert row.observation.dtype == np.uint8
        assert row.observation.shape == (2, 72, 96, 3)
    environments.close()
    environments.close()


def test_episodes_that_end_at_their_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMLAB_DOUBLE_FRAMES", "4")
    environments = make()
    first = environments.reset()
    end = forward(environments)
    assert end.step_type.tolist() == [TERMINATED] * 2
    assert end.reward.tolist() == [0.5, 0.5]
    assert np.array_equal(end.observation, first.observation)
    assert forward(environments).step_type.tolist() == [FIRST] * 2


def test_what_deepmind_lab_is_told(labs: list[Any]) -> None:
    environments = make(num_action_repeats=3, width=84, height=84, renderer="hardware")
    environments.reset()
    for action in range(len(ACTIONS)):
        environments.step(np.array([action, 4], np.int32))
    # It is made once, and no argument is left to a default that a build may choose otherwise.
    assert len(labs) == 2
    for lab in labs:
        assert lab.arguments == (
            (f"{PATH}explore_goal_locations_small", ["RGB_INTERLEAVED"]),
            {"config": {"width": "84", "height": "84"}, "renderer": "hardware"},
        )
    steps = [call for call in labs[0].calls if call[0] == "step"]
    assert all(kwargs == {"num_steps": 3} for _, _, kwargs in steps)
    wanted = [
        [0, 0, 0, 1, 0, 0, 0],  # forward
        [0, 0, 0, -1, 0, 0, 0],  # backward
        [0, 0, -1, 0, 0, 0, 0],  # strafe left
        [0, 0, 1, 0, 0, 0, 0],  # strafe right
        [-20, 0, 0, 0, 0, 0, 0],  # look left
        [20, 0, 0, 0, 0, 0, 0],  # look right
        [-20, 0, 0, 1, 0, 0, 0],  # look left and forward
        [20, 0, 0, 1, 0, 0, 0],  # look right and forward
        [0, 0, 0, 0, 1, 0, 0],  # fire
    ]
    assert [action for _, action, _ in steps] == [
        action for i, action in enumerate(wanted) if i != 7
    ]  # the eighth's was ignored: the episode had ended
    for array, action in zip(ACTIONS, wanted, strict=True):
        assert array.tolist() == action
        assert array.dtype == np.intc
        assert array.flags.c_contiguous
        assert array.base is None


def test_every_episode_has_a_seed_of_its_own(labs: list[Any]) -> None:
    """Case 63: Python's integers, which depend on run, environment and episode, and nothing else.

    And every one is another, also where an actor joins anew and resets in the middle.
    """

    def resets(**options: Any) -> list[list[dict[str, int]]]:
        labs.clear()
        environments = make(**options)
        environments.reset()
        for _ in range(14):
            forward(environments)
        environments.reset()
        return [[call[1] for call in lab.calls if call[0] == "reset"] for lab in labs]

    runs = [resets(), resets(seed=2), resets(env_ids=[2, 3])]
    assert runs[0] == resets()
    assert runs[0][1] == resets(env_ids=[1, 0])[0]
    seeds = set()
    for run in runs:
        for calls in run:
            assert [call["episode"] for call in calls] == [0, 1, 2, 3]
            assert all(type(value) is int for call in calls for value in call.values())
            assert all(0 <= call["seed"] < 2**31 for call in calls)
            seeds |= {call["seed"] for call in calls}
    assert len(seeds) == 3 * 2 * 4


def test_the_same_seeds_and_actions_show_the_same() -> None:
    """Case 107: 500 steps, whichever process steps which environment."""
    actions = np.random.default_rng(0).integers(9, size=(500, 3)).astype(np.int32)

    def play(env_ids: list[int]) -> list[np.ndarray]:
        environments = make(env_ids=env_ids, seed=5, width=16, height=16)
        rows = [environments.reset(), *(environments.step(row[env_ids]) for row in actions)]
        environments.close()
        return [row.observation for row in rows]

    together, first, second = play([0, 1, 2]), play([0, 1]), play([2])
    for a, b, c in zip(together, first, second, strict=True):
        assert np.array_equal(a, np.concatenate([b, c]))
    assert len({row.tobytes() for row in together[0]}) == 3


def test_descriptors_do_not_grow_with_episodes() -> None:
    environments = make(width=16, height=16)
    environments.reset()
    count = len(os.listdir("/proc/self/fd"))
    for _ in range(60):
        forward(environments)
    assert len(os.listdir("/proc/self/fd")) == count


def test_failures_name_the_environment(labs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("out of polygons")

    environments = make(env_ids=[6, 7])
    monkeypatch.setattr(labs[1], "reset", fail)
    with pytest.raises(
        RuntimeError, match=r"environment 7 failed in reset\(\): RuntimeError: out of polygons"
    ):
        environments.reset()
    environments = make(env_ids=[6, 7])
    environments.reset()
    monkeypatch.setattr(labs[2], "step", fail)
    with pytest.raises(RuntimeError, match=r"environment 6 failed in step\(\): RuntimeError"):
        forward(environments)
    environments = make(env_ids=[6, 7])
    monkeypatch.setattr(labs[-1], "observations", lambda: {"RGB_INTERLEAVED": np.zeros((3, 2, 2))})
    with pytest.raises(
        ValueError,
        match=r"environment 7: RGB_INTERLEAVED: wanted uint8\[72, 96, 3\].*float64\[3, 2, 2\]",
    ):
        environments.reset()


def test_a_failed_start_closes_what_was_made(labs: list[Any]) -> None:
    config = dmlab.Config()
    count = 0

    def make_lab() -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise MemoryError
        return deepmind_lab.Lab("lt_chasm", ["RGB_INTERLEAVED"], config={"width": "96"})

    with pytest.raises(MemoryError):
        DmlabEnvironments(dmlab.specs(config), range(4), 0, make_lab, 4)
    assert [lab.close() for lab in labs] == [False, False]


# Levels.


def test_all_levels_are_found_and_played(tmp_path: pathlib.Path, labs: list[Any]) -> None:
    """All 30 by short name and by path, those with variants in both."""
    assert len(levels.names()) == 30
    seen = set()
    for name in levels.names():
        for game in (name, f"{PATH}{name}"):
            config = dmlab.Config(game=game, width=16, height=12, dataset_path=str(tmp_path))
            for config_played in (config, dmlab.evaluation_config(config)):
                environments = dmlab.make(config_played, [0], 1)
                assert environments.reset().step_type.tolist() == [FIRST]
                environments.close()
                seen.add(labs[-1].arguments[0][0])
                assert labs[-1].arguments[0][0] in dmlab.describe(config_played)
    assert seen == {level for level in deepmind_lab.LEVELS if level.startswith(PATH)}


@pytest.mark.parametrize("task", ["rooms_collect_good_objects", "rooms_exploit_deferred_effects"])
@pytest.mark.parametrize("folder", ["", PATH])
def test_variants(task: str, folder: str) -> None:
    def settings(config: Any) -> tuple[str, dict[str, str]]:
        return levels.path(config.game), dmlab.lab_settings(config)

    size = {"width": "96", "height": "72"}
    test = f"{PATH}{task}_test", {**size, "allowHoldOutLevels": "true"}
    for variant in ("", "_train"):
        config = dmlab.Config(game=f"{folder}{task}{variant}")
        assert settings(config) == (f"{PATH}{task}_train", size)
        assert settings(dmlab.evaluation_config(config)) == test
    config = dmlab.Config(game=f"{folder}{task}_test")
    assert settings(config) == settings(dmlab.evaluation_config(config)) == test


def test_other_levels_pass_through(labs: list[Any]) -> None:
    for game in ("lt_chasm", "tests/empty_room_test"):
        config = dmlab.Config(game=game)
        assert dmlab.evaluation_config(config) == config
        assert dmlab.reference_scores(config) is None
        dmlab.make(config, [0], 0).reset()
        assert labs[-1].arguments[0][0] == game
    for game in ("nowhere", f"{PATH}explore_nothing"):
        config = dmlab.Config(game=game)
        with pytest.raises(
            UserError,
            match=f'--game={game}.* refuses the level {game} .*"Level not found: {game}"',
        ):
            dmlab.make(config, [0], 0)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("game", "explore_goal_location_small", "wanted one of explore_object_locations_small, "),
        ("game", "rooms_watermaze_test", "wanted one of rooms_collect_good_objects, "),
        ("game", "", "wanted one of "),
        ("game", "psychlab_visual_search", "wanted --dataset_path"),
        ("width", 94, "a multiple of 4 above 0"),
        ("width", 0, "a multiple of 4 above 0"),
        ("width", -4, "a multiple of 4 above 0"),
        ("height", 0, "a number above 0"),
        ("num_action_repeats", 0, "a number above 0"),
        ("renderer", "gpu", "one of software, hardware"),
    ],
)
def test_wrong_options_are_refused(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(ValueError, match=f"^--{name}={value}.*wanted") as error:
        dmlab.Config(**{name: value})
    assert wanted in str(error.value)
    assert "\n" not in str(error.value)


def test_the_data_set_is_passed_on_as_a_full_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.chdir(tmp_path)
    config = dmlab.Config(game="psychlab_visual_search", dataset_path="pictures")
    assert dmlab.lab_settings(config)["datasetPath"] == f"{tmp_path}/pictures"
    config = dataclasses.replace(config, dataset_path="~/pictures")
    assert dmlab.lab_settings(config)["datasetPath"] == os.path.expanduser("~/pictures")


def test_reference_scores_of_every_level() -> None:
    """Those of the file, found by each name of a level."""
    with open(ROOT / "envs/dmlab/dmlab30_scores.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    for row in rows:
        task = row["level"].removesuffix("_test")
        games = {row["level"], task}
        if task != row["level"]:
            games.add(f"{task}_train")
        for game in games | {f"{PATH}{game}" for game in games}:
            scores = dmlab.reference_scores(dmlab.Config(game=game, dataset_path="x"))
            assert scores is not None
            assert scores.random == float(row["random"])
            assert scores.human == float(row["human"]) > scores.random
    scores = dmlab.reference_scores(dmlab.Config())
    assert scores == (7.66, 267.5)


# Instructions.


def test_instructions_are_numbers_that_never_change() -> None:
    ids = instructions.encode("Pick the red object in the blue room.")
    assert ids.dtype == np.int32
    assert ids.shape == (16,)
    # Weights go with these: they must be the same everywhere and for ever.
    assert ids.tolist() == [2280, 2655, 2318, 2505, 2624, 2655, 3475, 360, 0, 0, 0, 0, 0, 0, 0, 0]
    assert instructions.encode("pick THE red,  object\nin the blue room").tolist() == ids.tolist()
    assert not instructions.encode("").any()
    assert (instructions.encode("go " * 40) == instructions.encode("go")[0]).all()
    many = [int(instructions.encode(f"word{i}")[0]) for i in range(2000)]
    assert min(many) >= 1
    assert max(many) <= instructions.SPEC.maximum == 4096
    assert len(set(many)) > 1500  # 1,582 are expected
    script = (
        "from seed_rl.envs.dmlab import instructions as i; print(i.encode('blue room').tolist())"
    )
    for seed in ("1", "2"):
        output = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(DOUBLE)},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        assert json.loads(output) == instructions.encode("blue room").tolist()


def test_instructions_are_seen_with_the_picture(labs: list[Any]) -> None:
    config = dmlab.Config(game="language_execute_random_task")
    environments = dmlab.make(config, range(2), 3)
    rows = [environments.reset(), *(forward(environments) for _ in range(10))]
    assert environments.specs.observation == {
        "frame": ArraySpec((72, 96, 3), "uint8", 0, 255),
        "instruction": instructions.SPEC,
    }
    assert labs[0].arguments[0][1] == ["RGB_INTERLEAVED", "INSTR"]
    for row in rows:
        assert row.observation.keys() == {"frame", "instruction"}
        assert row.observation["instruction"].dtype == np.int32
        assert row.observation["instruction"].shape == (2, 16)
        assert row.observation["instruction"].any(axis=1).all()
    # The end's, too: it is the last one that there was.
    assert rows[5].step_type.tolist() == [TERMINATED] * 2
    for key in ("frame", "instruction"):
        assert np.array_equal(rows[5].observation[key], rows[4].observation[key])
    text = labs[1].observations()["INSTR"]
    assert np.array_equal(rows[10].observation["instruction"][1], instructions.encode(text))
    labs[1].observations = lambda: {
        "RGB_INTERLEAVED": rows[0].observation["frame"][0],
        "INSTR": b"x",
    }
    with pytest.raises(ValueError, match="environment 1: INSTR: wanted a str, saw b'x'"):
        environments.reset()


# The module.


def run(script: str, *path: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        timeout=120,
    )


LEARNER = """
    import sys
    from seed_rl.__main__ import main
    code = main(["--run_mode=learner", "--environment=dmlab", "--logdir=/nonexistent/x"])
    assert "tensorflow" not in sys.modules
    sys.exit(code)
"""


def test_without_the_module_one_line_tells_where_to_read_on() -> None:
    result = run(LEARNER)
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert "needs DeepMind Lab's Python module deepmind_lab, which is not installed" in line
    assert "docs/environments.md, 'DeepMind Lab'" in line
    assert "## DeepMind Lab" in (ROOT / "docs/environments.md").read_text()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "raise ImportError('libOSMesa.so.8: cannot open shared object file')",
            "can't be imported: libOSMesa.so.8: cannot open shared object file",
        ),
        ("import missing_dependency", "can't be imported: No module named 'missing_dependency'"),
        ("", "wanted deepmind_lab.Lab, saw a module without it in "),
        (None, "wanted deepmind_lab.Lab, saw a module without it in "),  # a folder of sources
    ],
)
def test_with_a_broken_module_the_line_tells_the_reason(
    tmp_path: pathlib.Path, source: str | None, reason: str
) -> None:
    (tmp_path / "deepmind_lab").mkdir()
    if source is not None:
        (tmp_path / "deepmind_lab/__init__.py").write_text(source)
    result = run(LEARNER, tmp_path)
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert reason in line
    assert "docs/environments.md" in line


def test_actors_do_without_tensorflow_and_may_fork(tmp_path: pathlib.Path) -> None:
    """Case 112: with none of the software renderer's threads, a fork does no harm."""
    script = f"""
        import os, sys
        from seed_rl.envs import registry
        family = registry.load("dmlab")
        config = family.Config(level_cache_dir={str(tmp_path / "cache")!r})
        environments = family.make(config, range(2), 0)
        environments.reset()
        if os.fork() == 0:
            os._exit(0)
        assert os.wait()[1] == 0
        assert "tensorflow" not in sys.modules
    """
    result = run(script, DOUBLE)
    assert result.returncode == 0, result.stderr


def test_the_registry_has_it() -> None:
    assert registry.load("dmlab") is dmlab
