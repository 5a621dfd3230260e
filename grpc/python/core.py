"""Which of the two implementations of the wire is used: the native core or the Python one."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pathlib
from typing import Literal

CHOICES = ("auto", "native", "python")
HELP = "Transport: native, python, or auto = native where it is built."
# Written by setup.py where it could not build the native core: why, and what to type.
_NOTE = pathlib.Path(__file__).with_name("_native_missing.txt")
_HOW_TO_BUILD = "type: sudo apt-get install g++ libnghttp2-dev, then install seed_rl again"


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
        raise ValueError(f"--core=native: {reason}; or choose --core=auto")
    return "python"


@functools.cache
def why_python() -> str:
    """Why there is no native core and what to type, in a line; '' where there is one."""
    try:
        importlib.import_module("seed_rl.grpc._native")
    except ModuleNotFoundError:
        with contextlib.suppress(OSError):
            return f"the native core is not built: {' '.join(_NOTE.read_text('utf-8').split())}"
        return f"the native core is not built; {_HOW_TO_BUILD}"
    except ImportError as error:
        said = " ".join(str(error).split())
        return f"the native core can't be loaded: {said}; {_HOW_TO_BUILD}"
    return ""


def summary(core: str) -> str:
    """The core that is meant, and why it is the Python one where that wasn't asked for."""
    chosen = choose(core)
    reason = f", since {why_python()}" if chosen == "python" and core == "auto" else ""
    return f"{chosen} core{reason}"
