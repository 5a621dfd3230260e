"""Checks that the package under test is the one of this checkout."""

import importlib.util

import pytest


def pytest_configure() -> None:
    # The folders agents/, envs/ and grpc/python/ become parts of seed_rl only by installation.
    try:
        is_installed = importlib.util.find_spec("seed_rl.envs") is not None
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        pytest.exit("seed_rl is not installed: type pip install -e '.[atari,test,dev]'", 4)
