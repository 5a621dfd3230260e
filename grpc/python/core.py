"""Which of the two implementations of the wire is used: the native core or the Python one."""

from __future__ import annotations

import functools
from typing import Literal

CHOICES = ("auto", "native", "python")
HELP = "Transport: native, python, or auto = native where it is built."
_HOW_TO_BUILD = (
    "install libnghttp2-dev and g++ and type `pip install -e .` again, or choose --core=auto"
)


def choose(core: str) -> Literal["native", "python"]:
    """The core that is meant. Raises ValueError where it is unknown or isn't there."""
    if core not in CHOICES:
        raise ValueError(f"--core is {core!r}, wanted {', '.join(CHOICES)}")
    if core == "python":
        return "python"
    reason = why_python()
    if not reason:
        return "native"
    if core == "native":
        raise ValueError(f"--core=native: {reason}: {_HOW_TO_BUILD}")
    return "python"


@functools.cache
def why_python() -> str:
    """Why there is no native core, in a line; '' where there is one."""
    try:
        from seed_rl.grpc import _native  # noqa: F401
    except ImportError as error:
        return f"the native core can't be loaded: {' '.join(str(error).split())}"
    return ""


def summary(core: str) -> str:
    """The core that is meant, and why it is the Python one where that wasn't asked for."""
    chosen = choose(core)
    reason = f", since {why_python()}" if chosen == "python" and core == "auto" else ""
    return f"{chosen} core{reason}"
