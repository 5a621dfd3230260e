"""What gets installed, and that every way to install it installs the same."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys
import sysconfig
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = {
    "seed_rl": "seed_rl",
    "agents": "seed_rl/agents",
    "envs": "seed_rl/envs",
    "grpc/python": "seed_rl/grpc",
}
# A server and a client, of the cores that there are, exchange a row.
SERVE = """
import numpy as np
from seed_rl.grpc import client as clients, codec, server as servers
from seed_rl.specs import ArraySpec
layouts = codec.step_layout(ArraySpec((2,), "uint8")), codec.action_layout(ArraySpec((), "int32"))
server = servers.make_server("localhost:0", *layouts, "{}", 1, 1, 0.1)
client = clients.make_client(server.address)
client.join(0, 1, *layouts)
client.send([np.zeros((1, *spec.shape), spec.dtype) for _, spec in layouts[0].fields])
server.reply(server.next_batch(20), [np.int32([7])])
assert client.receive(20)[0].tolist() == [7]
server.close(finished=True)
print("served by", type(server).__name__)
"""
BUILD = "from setuptools import build_meta as b; import sys; print(b.build_{}(sys.argv[1]))"


def build(kind: str, source: pathlib.Path, target: pathlib.Path, native: str = "0") -> pathlib.Path:
    """A 'wheel' or 'sdist' of the source, by the build backend that pip would call."""
    target.mkdir(exist_ok=True)
    result = subprocess.run(
        [sys.executable, "-c", BUILD.format(kind), str(target)],
        cwd=source,
        env={**os.environ, "SEED_RL_NATIVE": native},
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
    """All modules under seed_rl, nothing else at top level, and the sdist makes the same wheel.

    Without the native core, since that takes long to build.
    """
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
    assert "seed_rl/envs/atari/human_scores.csv" in files
    assert files["seed_rl/envs/dmlab/dmlab30_scores.csv"].startswith(b"level,human,random\n")
    assert files["seed_rl/grpc/_native_missing.txt"] == b"SEED_RL_NATIVE=0 left it out\n"
    assert not any(name.endswith((".so", ".cc", ".h")) for name in files)
    assert any(name.endswith("LICENSE") for name in files)

    sdist = build("sdist", checkout, tmp_path / "dist")
    unpacked = tmp_path / "unpacked"
    python("import shutil, sys; shutil.unpack_archive(*sys.argv[1:])", ROOT, sdist, unpacked)
    (source,) = unpacked.iterdir()
    for name in ("LICENSE", "README.md", "run_local.sh", "scripts/test.sh", "grpc/service.proto"):
        assert (source / name).exists(), name
    sources = sorted((checkout / "grpc/native").glob("*.*"))
    assert sources
    for path in sources:
        assert (source / "grpc/native" / path.name).read_bytes() == path.read_bytes()
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


@pytest.mark.usefixtures("tiny_native")
def test_wheel_has_the_native_core(checkout: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Or the reason, but never what an earlier build has left."""
    name = f"seed_rl/grpc/_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    note = "seed_rl/grpc/_native_missing.txt"
    assert note in contents(build("wheel", checkout, tmp_path / "a"))
    files = contents(build("wheel", checkout, tmp_path / "b", native="1"))
    assert name in files
    assert note not in files
    files = contents(build("wheel", checkout, tmp_path / "c"))
    assert note in files
    assert name not in files


def build_native(
    checkout: pathlib.Path, **environment: str | pathlib.Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=checkout,
        env={**os.environ, "SEED_RL_NATIVE": "", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )


@pytest.mark.usefixtures("tiny_native")
def test_native_core_shows_only_its_entry(checkout: pathlib.Path) -> None:
    """So that it gets along with the nghttp2 and pybind11 of other modules."""
    assert build_native(checkout, SEED_RL_NATIVE="1").returncode == 0
    (built,) = checkout.glob("grpc/python/_native.*.so")
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", built], capture_output=True, text=True, check=True
    ).stdout
    assert [line.split()[-1] for line in symbols.splitlines()] == ["PyInit__native"]


def test_says_what_the_native_core_lacks(
    checkout: pathlib.Path, tiny_native: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    no_library = tmp_path / "no library"
    (no_library / "nghttp2").mkdir(parents=True)
    (no_library / "nghttp2/nghttp2.h").write_text("#error not here\n")
    no_compiler = {"CXX": "no-such-compiler"}
    (tiny_native / "more.cc").write_text("#ifdef MISTAKE\n#error wrong\n#endif\n")
    for environment, reason in (
        ({"CC": "false", "CXX": ""}, "false compiles no C++; type: sudo apt-get install g++"),
        (no_compiler, "no-such-compiler compiles no C++; type: sudo apt-get install g++"),
        (
            {"CPATH": str(no_library)},
            "found no libnghttp2; type: sudo apt-get install libnghttp2-dev, then install",
        ),
        (
            {"CXXFLAGS": "-DMISTAKE"},
            "it doesn't compile: grpc/native/more.cc:2:2: error: #error wrong",
        ),
        ({"SEED_RL_NATIVE": "0"}, "SEED_RL_NATIVE=0 left it out"),
    ):
        result = build_native(checkout, **environment)
        assert result.returncode == 0, result.stdout
        lines = [line for line in result.stdout.splitlines() if line.startswith("seed_rl: ")]
        assert len(lines) == 1, result.stdout
        (line,) = lines
        assert line.startswith(
            f"seed_rl: no native core, the Python core takes its place: {reason}"
        )
        note = (checkout / "grpc/python/_native_missing.txt").read_text()
        assert line.endswith(f": {note.strip()}")

    result = build_native(checkout, SEED_RL_NATIVE="1", **no_compiler)
    assert result.returncode != 0
    assert "SEED_RL_NATIVE=1, but no native core: no-such-compiler" in result.stdout
    assert "SEED_RL_NATIVE is 'yes'" in build_native(checkout, SEED_RL_NATIVE="yes").stdout


@pytest.mark.usefixtures("offline_pip")
def test_editable_install(
    checkout: pathlib.Path, offline_venv: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install -e .` without a compiler; also for packages that appear only later."""
    monkeypatch.setenv("CXX", "false")
    monkeypatch.delenv("SEED_RL_NATIVE", raising=False)
    venv_python = offline_venv / "bin/python"
    result = subprocess.run(
        [venv_python, "-m", "pip", "install", "-e", ".[atari,test,dev]"],
        cwd=checkout,
        check=True,
        timeout=120,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # Though pip doesn't show what builds say.
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("seed_rl: "))
    assert "the Python core takes its place: false compiles no C++; type: sudo apt-get" in line
    told = subprocess.run(
        [offline_venv / "bin/seed_rl", "version"], capture_output=True, text=True, check=True
    ).stdout
    assert "core python: the native core is not built: false compiles no C++; type" in told
    assert python(SERVE, offline_venv, executable=venv_python) == "served by AioServer"

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
