"""What gets installed, and that every way to install it installs the same."""

import importlib.metadata
import pathlib
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = {
    "seed_rl": "seed_rl",
    "agents": "seed_rl/agents",
    "envs": "seed_rl/envs",
    "grpc/python": "seed_rl/grpc",
}
BUILD = "from setuptools import build_meta as b; import sys; print(b.build_{}(sys.argv[1]))"


def build(kind: str, source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """A 'wheel' or 'sdist' of the source, by the build backend that pip would call."""
    target.mkdir(exist_ok=True)
    result = subprocess.run(
        [sys.executable, "-c", BUILD.format(kind), str(target)],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return target / result.stdout.splitlines()[-1]


def contents(wheel: pathlib.Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def python(
    code: str,
    cwd: pathlib.Path,
    *arguments: pathlib.Path,
    executable: str | pathlib.Path = sys.executable,
) -> str:
    result = subprocess.run(
        [executable, "-c", code, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_wheel_and_sdist(checkout: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """All modules under seed_rl, nothing else at top level, and the sdist makes the same wheel."""
    modules = {
        f"{package}/{path.relative_to(checkout / folder).as_posix()}"
        for folder, package in FOLDERS.items()
        for path in (checkout / folder).rglob("*.py")
    }
    wheel = build("wheel", checkout, tmp_path / "dist")
    files = contents(wheel)
    assert {name.partition("/")[0] for name in files if ".dist-info/" not in name} == {"seed_rl"}
    assert {name for name in files if name.endswith(".py")} == modules
    assert "seed_rl/py.typed" in files
    assert "seed_rl/grpc/service_pb2.pyi" in files
    assert any(name.endswith("LICENSE") for name in files)

    sdist = build("sdist", checkout, tmp_path / "dist")
    unpacked = tmp_path / "unpacked"
    python("import shutil, sys; shutil.unpack_archive(*sys.argv[1:])", ROOT, sdist, unpacked)
    (source,) = unpacked.iterdir()
    for name in ("LICENSE", "README.md", "run_local.sh", "scripts/test.sh", "grpc/service.proto"):
        assert (source / name).exists(), name
    from_sdist = contents(build("wheel", source, tmp_path / "again"))
    assert {name: data for name, data in from_sdist.items() if not name.endswith("RECORD")} == {
        name: data for name, data in files.items() if not name.endswith("RECORD")
    }

    # Imported from the wheel, and not from this checkout.
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "import grpc, seed_rl.agents.vtrace.config, seed_rl.envs.catch, seed_rl.grpc.codec as c; "
        "print(c.__file__); assert grpc.insecure_channel"
    )
    assert python(code, tmp_path, wheel).startswith(str(wheel))


@pytest.mark.usefixtures("offline_pip")
def test_editable_install(checkout: pathlib.Path, offline_venv: pathlib.Path) -> None:
    """`pip install -e .`, also for packages that appear only later."""
    venv_python = offline_venv / "bin/python"
    subprocess.run(
        [venv_python, "-m", "pip", "install", "-q", "-e", ".[atari,test,dev]"],
        cwd=checkout,
        check=True,
        timeout=120,
    )
    later = checkout / "agents" / "later"
    later.mkdir()
    (later / "__init__.py").write_text("FOUND = True\n")
    code = (
        "import grpc, seed_rl.agents.later as later, seed_rl.grpc.codec as c; "
        "print(c.__file__); assert later.FOUND and grpc.insecure_channel"
    )
    for cwd in (offline_venv, checkout):
        found = python(code, cwd, executable=venv_python)
        assert found == str(checkout / "grpc/python/codec.py")


def test_grpc_is_grpcio_even_in_the_checkout() -> None:
    """A regular package wins over a bare folder; with an __init__.py, grpc/ would hide grpcio."""
    assert not (ROOT / "grpc/__init__.py").exists()
    code = "import grpc; print(grpc.__version__)"
    assert python(code, ROOT) == importlib.metadata.version("grpcio")


@pytest.mark.parametrize("name", ["agents", "envs", "tests"])
def test_nothing_else_is_importable(name: str, tmp_path: pathlib.Path) -> None:
    code = f"import importlib.util as u; print(u.find_spec({name!r}))"
    assert python(code, tmp_path) == "None"


def test_version_is_one() -> None:
    import seed_rl

    assert importlib.metadata.version("seed_rl") == seed_rl.__version__
