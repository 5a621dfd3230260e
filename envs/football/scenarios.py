"""Scenarios of Google Research Football by name. Does not start its engine."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import os
import pkgutil


@functools.cache
def names() -> tuple[str, ...]:
    """All that gfootball has, without what it tests itself with. It must be installed."""
    spec = importlib.util.find_spec("gfootball")
    assert spec is not None, "gfootball is not installed: the registry says so first"
    folders = [os.path.join(path, "scenarios") for path in spec.submodule_search_locations or []]
    found = {module.name for module in pkgutil.iter_modules(folders)}
    return tuple(sorted(name for name in found if not name.startswith("test")))


def require(name: str) -> None:
    """Raises ValueError with the nearest names for an unknown one; gfootball would exit."""
    if name in names():
        return
    near = difflib.get_close_matches(name, names(), n=3, cutoff=0.5)
    wanted = f"did you mean {' or '.join(near)}?" if near else f"wanted one of {', '.join(names())}"
    raise ValueError(f"--game={name}: Google Research Football has no such scenario; {wanted}")


def is_match(name: str) -> bool:
    """Whether the clock's end is the game's end; in exercises it is but a limit to their time."""
    return not name.startswith("academy_")
