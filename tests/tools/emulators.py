"""Which Atari emulators tests run on."""

import importlib.util

import pytest

needs_atari_py = pytest.mark.skipif(
    importlib.util.find_spec("atari_py") is None,
    reason="atari-py is not installed: type scripts/install_atari_py.sh",
)
BACKENDS = pytest.mark.parametrize(
    "backend", ["ale_py", pytest.param("atari_py", marks=needs_atari_py)]
)
