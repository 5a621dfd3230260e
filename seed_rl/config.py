"""Configuration: frozen dataclasses whose fields are the flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any


def option(default: Any, help: str, choices: Sequence[str] | None = None) -> Any:
    """A dataclass field that is also a flag of the same name. `None` as default makes it optional.

    Its type is read from the annotation: bool, int, float, str or `str | None`, `int | None`, ...
    """
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices})
