"""Checks an installed DeepMind Lab, and seed_rl's adapter to it: one line a check, pass or FAIL.

    .venv/bin/python scripts/check_dmlab.py

takes some minutes, since levels are compiled. --game chooses the level, which should be one that is
compiled anew for every episode. Exit code: 0 where all pass, 1 where one fails, 2 where there is no
DeepMind Lab.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from seed_rl.envs import registry
from seed_rl.specs import flatten
from seed_rl.types import StepType, Transition

_LANGUAGE = "language_select_described_object"
_HELD_OUT = "rooms_collect_good_objects_test"
_NOOP = np.zeros(7, np.intc)


class Report:
    """Counts what fails, and prints a line for every check."""

    def __init__(self) -> None:
        self.num_failures = 0

    def check(self, name: str, passes: bool, seen: Any = "") -> None:
        self.num_failures += not passes
        print(
            f"{'pass' if passes else 'FAIL'}  {name}{f': {seen}' if seen != '' else ''}", flush=True
        )

    def check_raises(self, name: str, error: type[Exception], call: Callable[[], Any]) -> None:
        try:
            seen: Any = f"no error, but {call()!r}"
            passes = False
        except Exception as raised:
            seen = f"{type(raised).__name__}: {raised}"
            passes = isinstance(raised, error)
        self.check(f"{name} is a {error.__name__}", passes, seen)

    @contextlib.contextmanager
    def part(self, title: str) -> Iterator[None]:
        """A failure that nobody expected ends this part, and the next one goes on."""
        print(f"\n{title}", flush=True)
        try:
            yield
        except Exception as error:
            self.check("goes on", False, f"{type(error).__name__}: {error}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--game", default="explore_goal_locations_small")
    parser.add_argument("--renderer", default="software")
    arguments = parser.parse_args(argv)
    options = vars(arguments)
    try:
        family: Any = registry.load("dmlab")
        import deepmind_lab

        family.Config(**options)
    except (ImportError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"DeepMind Lab in {pathlib.Path(deepmind_lab.__file__).parent}")
    report = Report()
    with report.part("The module keeps the contract that the adapter relies on"):
        _check_module(report, deepmind_lab, options)
    with report.part("Two episodes of 500 random actions"):
        _check_play(report, family, options)
    with report.part("An episode's end"):
        _check_end(report, family, options)
    with report.part("Seeds"):
        _check_seeds(report, family, options)
    with report.part("The level cache"):
        _check_level_cache(report, family, options)
    with report.part(f"Instructions: {_LANGUAGE}"):
        _check_instructions(report, family, options)
    with report.part(f"Levels that are held out: {_HELD_OUT}"):
        rows, _ = _play(family, options | {"game": _HELD_OUT}, num_steps=5)
        report.check("plays", _is_sound(family, options | {"game": _HELD_OUT}, rows))
    print(f"\n{report.num_failures or 'no'} check(s) failed", flush=True)
    return 1 if report.num_failures else 0


def _check_module(report: Report, deepmind_lab: Any, options: dict[str, str]) -> None:
    level, size = f"contributed/dmlab30/{_LANGUAGE}", {"width": "96", "height": "72"}

    def make(observations: Any = ("RGB_INTERLEAVED", "INSTR"), **config: Any) -> Any:
        return deepmind_lab.Lab(
            level, list(observations), config=size | config, renderer=options["renderer"]
        )

    lab = make()
    report.check("is not running before its first reset", lab.is_running() is False)
    report.check_raises("a step before it", RuntimeError, lambda: lab.step(_NOOP))
    report.check_raises("a seed of np.int64", ValueError, lambda: lab.reset(seed=np.int64(1)))
    report.check("reset() is True", lab.reset(episode=0, seed=1) is True)
    report.check("runs after it", lab.is_running() is True)
    reward = lab.step(_NOOP, num_steps=4)
    report.check("step() is a float", type(reward) is float, repr(reward))
    report.check("num_steps() counts frames", lab.num_steps() == 4, lab.num_steps())
    seen = lab.observations()
    frame, text = seen["RGB_INTERLEAVED"], seen["INSTR"]
    report.check(
        "RGB_INTERLEAVED is uint8[72, 96, 3]",
        isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.shape == (72, 96, 3),
        f"{frame.dtype}{list(frame.shape)}",
    )
    report.check("INSTR is a str", type(text) is str, repr(text))
    kept = frame.copy()
    lab.step(np.array([20, 0, 0, 0, 0, 0, 0], np.intc), num_steps=4)
    report.check("observations are fresh arrays", np.array_equal(frame, kept))
    report.check("looking around changes them", not np.array_equal(_frame(lab), kept))
    limits = [(part["min"], part["max"]) for part in lab.action_spec()]
    wanted = [(-512, 512), (-512, 512), (-1, 1), (-1, 1), (0, 1), (0, 1), (0, 1)]
    report.check("actions are the seven known", limits == wanted, limits)
    report.check_raises("an action as a list", TypeError, lambda: lab.step([0] * 7))
    report.check_raises("an int64 action", ValueError, lambda: lab.step(np.zeros(7, np.int64)))
    report.check_raises("an action of 6", ValueError, lambda: lab.step(np.zeros(6, np.intc)))
    report.check("close() is True, then False", (lab.close(), lab.close()) == (True, False))
    report.check("is not running when closed", lab.is_running() is False)
    report.check_raises("observations() then", RuntimeError, lab.observations)
    report.check_raises("an unknown observation", ValueError, lambda: make(["NOPE"]))
    report.check_raises("a setting that is no str", TypeError, lambda: make(width=96))
    report.check_raises("a width of 94", RuntimeError, lambda: make(width="94"))


def _frame(lab: Any) -> np.ndarray:
    return lab.observations()["RGB_INTERLEAVED"]


def _make(family: Any, options: dict[str, Any], env_ids: Any = (0,)) -> Any:
    return family.make(family.Config(**options), env_ids, 1)


def _play(
    family: Any, options: dict[str, Any], num_steps: int, env_ids: Any = (0,)
) -> tuple[list[Transition], float]:
    """Rows of a reset and the steps after it, of fresh environments, and their seconds."""
    environments = _make(family, options, env_ids)
    actions = np.random.default_rng(0).integers(9, size=(num_steps, 64)).astype(np.int32)
    try:
        rows = [environments.reset()]
        started = time.monotonic()
        rows += [environments.step(row[: len(env_ids)]) for row in actions]
        return rows, time.monotonic() - started
    finally:
        environments.close()


def _is_sound(family: Any, options: dict[str, Any], rows: list[Transition]) -> bool:
    """Whether shapes and dtypes are those of the specs, and all rewards are finite numbers."""
    wanted = flatten(family.specs(family.Config(**options)).observation)
    return all(
        row.reward.dtype == np.float32
        and np.isfinite(row.reward).all()
        and [(leaf.shape[1:], leaf.dtype.name) for leaf in flatten(row.observation)]
        == [(spec.shape, spec.dtype) for spec in wanted]
        for row in rows
    )


def _check_play(report: Report, family: Any, options: dict[str, Any]) -> None:
    environments = _make(family, options)
    actions = np.random.default_rng(0).integers(9, size=(2, 500, 1)).astype(np.int32)
    started, rows = time.monotonic(), []
    for episode in actions:
        rows.append(environments.reset())
        rows += [environments.step(action) for action in episode]
    secs = time.monotonic() - started
    environments.close()
    report.check("1,000 steps with resets", True, f"{secs:.1f} s, {1000 / secs:.0f} steps/s")
    report.check("types, shapes and rewards", _is_sound(family, options, rows))
    frames = [row.observation[0] for row in rows]
    changes = sum(not np.array_equal(a, b) for a, b in itertools.pairwise(frames))
    report.check("pictures change", changes > 500, f"{changes} times")
    report.check("the second episode shows another place", not np.array_equal(*frames[::501]))
    report.check("no picture is all of one colour", all(np.ptp(frame) > 0 for frame in frames))


def _check_end(report: Report, family: Any, options: dict[str, Any]) -> None:
    environments = _make(family, options | {"num_action_repeats": 60})
    row = before = environments.reset()
    steps = 0
    while row.step_type[0] != StepType.TERMINATED and steps < 2000:
        before, row = row, environments.step(np.array([steps % 9], np.int32))
        steps += 1
    ends = row.step_type[0] == StepType.TERMINATED
    report.check("the level ends", bool(ends), f"after {60 * steps} frames")
    if ends:
        report.check("with the last picture", np.array_equal(row.observation, before.observation))
        row = environments.step(np.zeros(1, np.int32))
        starts = row.step_type[0] == StepType.FIRST and row.reward[0] == 0
        report.check("and starts anew", bool(starts))
        row = environments.step(np.zeros(1, np.int32))
        report.check("and goes on", row.step_type[0] == StepType.MID)
    environments.close()


def _check_seeds(report: Report, family: Any, options: dict[str, Any]) -> None:
    once, again = (_play(family, options, 100)[0] for _ in range(2))
    same = all(
        np.array_equal(a.observation, b.observation) and a.reward == b.reward
        for a, b in zip(once, again, strict=True)
    )
    report.check("the same seed and actions show the same in a fresh environment", same)
    (both, *_), _ = _play(family, options, 0, (0, 1))
    report.check("another environment shows something else", not np.array_equal(*both.observation))
    report.check(
        "an environment shows the same beside another",
        np.array_equal(both.observation[0], once[0].observation[0]),
    )


def _check_level_cache(report: Report, family: Any, options: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cached = options | {"level_cache_dir": folder}
        rows, secs = [], []
        for _ in range(2):
            started = time.monotonic()
            rows.append(_play(family, cached, 20)[0])
            secs.append(time.monotonic() - started)
            if len(rows) == 1:
                files = {path: path.stat().st_mtime_ns for path in pathlib.Path(folder).iterdir()}
                report.check("a compiled level is kept", len(files) > 0, f"{len(files)} file(s)")
        after = {path: path.stat().st_mtime_ns for path in pathlib.Path(folder).iterdir()}
        times = f"{secs[0]:.1f} s before, {secs[1]:.1f} s now"
        report.check("and taken at the next start, not compiled again", files == after, times)
        same = all(np.array_equal(a.observation, b.observation) for a, b in zip(*rows, strict=True))
        report.check("and shows the same", same)
        for path in after:
            os.truncate(path, path.stat().st_size // 2)
        rows.append(_play(family, cached, 20)[0])
        report.check(
            "a cut file does no harm", np.array_equal(*(r[0].observation for r in rows[1:]))
        )
    with tempfile.NamedTemporaryFile() as file:
        _play(family, options | {"level_cache_dir": f"{file.name}/cache"}, 5)
        report.check("a folder that can't be made does no harm", True)


def _check_instructions(report: Report, family: Any, options: dict[str, Any]) -> None:
    spoken = options | {"game": _LANGUAGE}
    rows, _ = _play(family, spoken, 50, (0, 1))
    report.check("types, shapes and rewards", _is_sound(family, spoken, rows))
    words = np.stack([row.observation["instruction"] for row in rows])
    report.check("there is always one", bool((words[:, :, 0] > 0).all()), words[0, 0].tolist())
    report.check("beside a picture", all(row.observation["frame"].any() for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
