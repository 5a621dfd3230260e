"""The check of an installed DeepMind Lab, run on its double."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def run(*arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts/check_dmlab.py", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_all_checks_pass() -> None:
    result = run(path=str(ROOT / "tests/tools/dmlab_double"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("\npass  ") > 35
    assert "FAIL" not in result.stdout
    assert result.stdout.endswith("no check(s) failed\n")


def test_failures_are_shown_and_the_rest_is_checked(tmp_path: pathlib.Path) -> None:
    (tmp_path / "deepmind_lab.py").write_text(
        (ROOT / "tests/tools/dmlab_double/deepmind_lab.py")
        .read_text()
        .replace("return float(action[3])", "return np.float32(action[3])")
        .replace('"INSTR": self._text', '"INSTR": self._text.encode()')
    )
    result = run(path=str(tmp_path))
    assert result.returncode == 1, result.stderr
    failures = [line for line in result.stdout.splitlines() if line.startswith("FAIL")]
    assert [line.split(":")[0] for line in failures] == [
        "FAIL  step() is a float",
        "FAIL  INSTR is a str",
        "FAIL  goes on",
    ]
    assert "environment 0: INSTR: wanted a str, saw b'" in failures[2]
    assert result.stdout.endswith("3 check(s) failed\n")


def test_without_deepmind_lab() -> None:
    result = run(path="")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "which is not installed" in result.stderr
