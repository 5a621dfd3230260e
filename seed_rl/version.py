"""What `seed_rl version` tells: the versions in use, and which core carries the rows."""

from __future__ import annotations

import importlib.metadata
import platform

import seed_rl
from seed_rl.grpc import core


def _installed(distribution: str) -> str:
    # Asked of the package's metadata: to import TensorFlow takes seconds.
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "is not installed"


def _core() -> str:
    reason = core.why_python()
    if reason:
        return f"python: {reason}"
    from seed_rl.grpc import _native

    return f"native, nghttp2 {_native.nghttp2_version()}"


def text() -> str:
    return "\n".join(
        [
            f"seed_rl {seed_rl.__version__}",
            f"core {_core()}",
            f"Python {platform.python_version()}",
            f"TensorFlow {_installed('tensorflow')}",
            f"numpy {_installed('numpy')}",
            f"grpcio {_installed('grpcio')}",
        ]
    )
