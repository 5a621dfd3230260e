import builtins
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from seed_rl.envs import registry
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType

EXAMPLES = pathlib.Path(__file__).parents[2] / "docs/examples"


@pytest.mark.parametrize("name", ["atari", "catch", "gym", "recall"])
def test_every_family_plays(name):
    family = registry.load(name)
    config = family.Config()
    specs = family.specs(config)
    environments = family.make(config, range(3), seed=1)
    rows = environments.reset()
    assert (rows.step_type == StepType.FIRST).all()
    assert environments.specs == specs
    for _ in range(5):
        rows = environments.step(specs.action.zeros(3))
        assert rows.step_type.dtype == np.uint8
        assert rows.reward.dtype == rows.raw_reward.dtype == np.float32
        assert rows.observation.dtype == specs.observation.dtype
        assert rows.observation.shape == (3, *specs.observation.shape)
    environments.close()
    assert family.describe(config)
    assert "\n" not in family.describe(config)


@pytest.mark.parametrize("name", ["atary", "", "atari:", ":Pong"])
def test_unknown_families_are_refused_with_the_known_ones(name):
    with pytest.raises(
        ValueError, match=r"atari, catch, dmlab, football, gym, mujoco, recall, or 'module:factory'"
    ) as error:
        registry.load(name)
    assert f"--environment={name} " in str(error.value)


def test_the_error_about_a_missing_package_says_what_to_install(monkeypatch):
    real_import = builtins.__import__

    def no_ale(name, *args, **kwargs):
        if name.split(".")[0] == "ale_py":
            raise ModuleNotFoundError("No module named 'ale_py'", name="ale_py")
        return real_import(name, *args, **kwargs)

    for module in [m for m in sys.modules if m.startswith("seed_rl.envs.atari")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", no_ale)
    with pytest.raises(ImportError, match=r"needs the package ale_py.*'seed_rl\[atari\]'"):
        registry.load("atari")


def test_families_import_neither_tensorflow_nor_each_other():
    script = """
        import sys
        from seed_rl.envs import registry
        assert not {"ale_py", "gymnasium"} & set(sys.modules)
        registry.load("catch")
        registry.load("recall")
        assert not {"ale_py", "gymnasium"} & set(sys.modules)
        registry.load("gym")
        assert "ale_py" not in sys.modules
        registry.load("atari")
        assert "tensorflow" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=120)


def test_the_documented_example_runs_2000_steps(monkeypatch):
    """Case 25: an environment in one file of at most 40 lines."""
    assert len((EXAMPLES / "coin_walk.py").read_text().splitlines()) <= 40
    monkeypatch.syspath_prepend(str(EXAMPLES))
    family = registry.load("coin_walk:CoinWalk")
    config = family.Config()
    assert family.specs(config).observation == ArraySpec((2,), "float32", -1, 1)
    assert family.specs(config).action == ArraySpec((), "int32", 0, 1)
    assert "coin_walk:CoinWalk" in family.describe(config)
    environments = family.make(config, range(4), seed=0)
    rows, rng = environments.reset(), np.random.default_rng(0)
    ends = {StepType.TERMINATED: 0, StepType.TRUNCATED: 0}
    for _ in range(2000):
        last = rows.step_type >= 2
        rows = environments.step(rng.integers(2, size=4).astype(np.int32))
        assert ((rows.step_type == StepType.FIRST) == last).all()
        for kind in ends:
            ends[kind] += (rows.step_type == kind).sum()
        assert (rows.reward[rows.step_type == StepType.TERMINATED] == 1).all()
    assert all(count > 10 for count in ends.values())
    environments.close()


def test_user_modules_that_are_missing_or_broken(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="found no module no_such_module; start from the folder"):
        registry.load("no_such_module:make")
    (tmp_path / "my_broken_env.py").write_text("import no_such_dependency\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        registry.load("my_broken_env:make")
    (tmp_path / "my_empty_env.py").write_text("make = 3\n")
    with pytest.raises(ValueError, match=r"wanted a function or class 'make' in .*my_empty_env.py"):
        registry.load("my_empty_env:make")
