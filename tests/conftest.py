"""Checks that the package under test is the one of this checkout; copies the checkout for tests."""

import importlib.util
import pathlib
import shutil
import signal
import subprocess
import sys
import sysconfig

import pytest

ROOT = pathlib.Path(__file__).parent.parent
# What git does not have, or the copies do not need.
_NOT_COPIED = shutil.ignore_patterns(
    *(".git", ".venv*", ".*_cache", "__pycache__", "*.egg-info", "build", "dist", "logs"),
    *("*.so", "_native_missing.txt"),
)


def pytest_configure() -> None:
    # The folders agents/, envs/ and grpc/python/ become parts of seed_rl only by installation.
    try:
        is_installed = importlib.util.find_spec("seed_rl.envs") is not None
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        pytest.exit("seed_rl is not installed: type pip install -e '.[atari,mujoco,test,dev]'", 4)
    # A shell starts background jobs with Ctrl-C ignored; the processes of tests would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of this checkout, in a folder whose name has a space."""
    copy = tmp_path / "a checkout"
    shutil.copytree(ROOT, copy, ignore=_NOT_COPIED)
    return copy


@pytest.fixture
def tiny_native(checkout: pathlib.Path) -> pathlib.Path:
    """The copy's folder of C++ files, with a native core that does nothing and is built quickly."""
    compiler = shutil.which("c++")
    if (
        compiler is None
        or subprocess.run(
            [compiler, "-x", "c++", "-E", "-"],
            input=b"#include <nghttp2/nghttp2.h>",
            capture_output=True,
            timeout=60,
        ).returncode
    ):
        pytest.skip("needs a compiler and libnghttp2: type sudo apt-get install g++ libnghttp2-dev")
    folder = checkout / "grpc/native"
    for path in (*folder.glob("*.cc"), *folder.glob("*.h")):
        path.unlink()
    (folder / "tiny.h").write_text("#include <Python.h>\n#include <nghttp2/nghttp2.h>\n")
    (folder / "module.cc").write_text(
        """#include "tiny.h"
        static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native"};
        PyMODINIT_FUNC PyInit__native() {
            PyObject* module = PyModule_Create(&definition);
            PyModule_AddStringConstant(module, "nghttp2", nghttp2_version(0)->version_str);
            return module;
        }
        """
    )
    return folder


@pytest.fixture
def offline_venv(tmp_path: pathlib.Path) -> pathlib.Path:
    """A new virtual environment that also finds what the one that runs the tests has.

    Only what stands in site-packages itself, such as pip: so not the seed_rl installed there.
    """
    venv = tmp_path / "a venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    (site_packages,) = venv.glob("lib/python*/site-packages")
    (site_packages / "of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv


@pytest.fixture
def offline_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes pip install without the network, with what there is already."""
    monkeypatch.setenv("PIP_NO_DEPS", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # pip reads 0 as: yes, without
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
