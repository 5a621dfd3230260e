"""What the README tells people to type."""

import pathlib
import re

import numpy as np
import pytest

from seed_rl import __main__ as program
from seed_rl import launcher
from seed_rl.envs import registry
from seed_rl.types import StepType

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_example_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 25: an environment of one file, in at most 40 lines, lasts for 2,000 steps."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (example,) = [block for block in blocks if "gymnasium.Env" in block]
    assert len(example.splitlines()) <= 40
    (tmp_path / "readme_game.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    family = registry.load("readme_game:make")
    environments = family.make(family.Config(), range(2), 0)
    environments.reset()
    seen = set()
    rewards = 0.0
    rng = np.random.default_rng(0)
    for step in range(2_000):
        # Steps to the right in the first half, so that episodes end in either way.
        action = np.ones(2, np.int32) if step < 1_000 else rng.integers(0, 2, 2, np.int32)
        transition = environments.step(action)
        seen.update(transition.step_type.tolist())
        rewards += float(transition.reward.sum())
    environments.close()
    assert seen == set(StepType)
    assert rewards > 100


def test_flags_and_links_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for mode, environment, agent in (
        ("learner", "atari", "vtrace"),
        ("learner", "recall", "r2d2"),
        ("actor", "atari", "vtrace"),
    ):
        words = [f"--run_mode={mode}", f"--environment={environment}", f"--agent={agent}"]
        assert program.main([*words, "--help"]) == 0
    known = set(re.findall(r"^  --(\w+)=", capsys.readouterr().out, re.MULTILINE))
    # Those of other programs: run_local.sh, evaluation, pip, native_check.sh.
    foreign = {"docker", "episodes", "help", "runs"}
    for document in ("README.md", "CONTRIBUTING.md", "docs/architecture.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        assert set(re.findall(r"--([a-z_]+)\b", text)) - foreign <= known | {"strict"}
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert ((ROOT / document).parent / link).exists(), f"{document}: {link}"


def test_words_of_the_launcher() -> None:
    commands = re.findall(r"run_local\.sh (\w\S*) (\w+) (\d+) (\d+)\b", README, re.MULTILINE)
    assert commands
    for words in commands:
        launcher.parse_words(words)
