"""The command `seed_rl version`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import seed_rl
from seed_rl.__main__ import main
from seed_rl.grpc import core


def test_tells_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    lines = dict(line.split(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert lines.pop("core").startswith("python: " if core.why_python() else "native, nghttp2 1.")
    assert lines == {
        "seed_rl": seed_rl.__version__,
        "Python": platform.python_version(),
        "TensorFlow": importlib.metadata.version("tensorflow"),
        "numpy": importlib.metadata.version("numpy"),
        "grpcio": importlib.metadata.version("grpcio"),
    }


def test_is_quick_and_a_command(tmp_path: Path) -> None:
    """It imports neither TensorFlow nor grpcio, and is the same by either name."""
    outputs = [
        subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        ).stdout
        for command in (
            [Path(sys.executable).with_name("seed_rl"), "version"],
            [sys.executable, "-m", "seed_rl", "version"],
        )
    ]
    assert outputs[0] == outputs[1]
    code = (
        "import sys; from seed_rl import version; version.text(); "
        "print({'tensorflow', 'grpc'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert result.stdout == "set()\n"


def test_says_why_there_is_no_native_core(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Why the build failed where that is known, else what to type; and what the loader says."""

    def tell(error: ImportError) -> str:
        def fail(name: str) -> None:
            raise error

        monkeypatch.setattr(core.importlib, "import_module", fail)
        core.why_python.cache_clear()
        main(["--version"])
        return capsys.readouterr().out.splitlines()[1]

    monkeypatch.setattr(core, "_NOTE", tmp_path / "_native_missing.txt")
    try:
        line = tell(ModuleNotFoundError("no _native"))
        assert line.startswith("core python: the native core is not built; type: sudo apt-get")
        (tmp_path / "_native_missing.txt").write_text("found no compiler; type: this\n")
        line = tell(ModuleNotFoundError("no _native"))
        assert line == "core python: the native core is not built: found no compiler; type: this"
        line = tell(ImportError("libnghttp2.so.14: cannot open\nshared object file"))
        assert "can't be loaded: libnghttp2.so.14: cannot open shared object file; type" in line
        with pytest.raises(ValueError, match="cannot open"):
            core.choose("native")
        assert core.choose("auto") == "python"
    finally:
        core.why_python.cache_clear()


@pytest.mark.skipif(os.environ.get("SEED_RL_NATIVE") != "1", reason="it is not asked for")
def test_native_core_is_there_where_it_has_to_be() -> None:
    """Otherwise its tests would all be skipped without anyone noticing."""
    assert core.why_python() == ""
