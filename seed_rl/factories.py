"""Functions and classes of the user's own, which flags name as 'module:factory'."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def is_name(text: str) -> bool:
    """Whether it is of the form 'module:factory'."""
    module_name, _, factory_name = text.partition(":")
    return bool(module_name and factory_name)


def find(flag: str, name: str) -> Callable[..., Any]:
    """What `name`, 'module:factory', stands for.

    Raises ValueError, in terms of the flag, where there is no such module or function.
    """
    module_name, _, factory_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the user's module is there, and misses one of its own imports
        raise ValueError(
            f"--{flag}={name}: found no module {module_name}; start from the folder "
            "that has it, or add that folder to PYTHONPATH"
        ) from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise ValueError(
            f"--{flag}={name}: wanted a function or class {factory_name!r} in "
            f"{module.__file__}, saw {factory!r}"
        )
    return factory
