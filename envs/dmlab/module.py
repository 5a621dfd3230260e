"""The user's build of DeepMind Lab's Python module, or an error that says where to get it."""

from __future__ import annotations

import importlib
from typing import Any

_NAME = "deepmind_lab"
_HELP = "docs/environments.md, 'DeepMind Lab', tells how to build and install it"


def load() -> Any:
    """The module `deepmind_lab`. Raises ImportError that says what is wrong with it."""
    try:
        module = importlib.import_module(_NAME)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == _NAME:
            raise ImportError(
                f"--environment=dmlab needs DeepMind Lab's Python module {_NAME}, which is not "
                f"installed and which no package index has: {_HELP}",
                name=_NAME,
            ) from error
        raise ImportError(
            f"--environment=dmlab: the module {_NAME} is installed but can't be imported: {error}; "
            f"{_HELP}",
            name=_NAME,
        ) from error
    if not hasattr(module, "Lab"):
        places = getattr(module, "__file__", None) or ", ".join(module.__path__)
        raise ImportError(
            f"--environment=dmlab: wanted {_NAME}.Lab, saw a module without it in {places}, which "
            f"may be a folder of sources: {_HELP}",
            name=_NAME,
        )
    return module
