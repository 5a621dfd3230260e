"""Command-line flags made from configuration dataclasses, and back.

Flags live on a FlagValues of their own, never on absl's global one, so that libraries cannot come
to depend on them and two programs can be imported into one process.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from absl import flags

from seed_rl.errors import UserError, as_user_error

T = TypeVar("T")


def _define(values: flags.FlagValues, field: dataclasses.Field[Any], kind: Any) -> None:
    if isinstance(kind, types.UnionType):  # 'str | None'
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    help_text, choices = field.metadata["help"], field.metadata["choices"]
    if choices:
        default: Any = field.default
        flags.DEFINE_enum(field.name, default, choices, help_text, flag_values=values)
        return
    define: Any = {
        bool: flags.DEFINE_bool,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }[kind]
    define(field.name, field.default, help_text, flag_values=values)


def define(values: flags.FlagValues, config_class: type) -> None:
    """Adds one flag for each field of the dataclass."""
    kinds = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        if field.name in values:
            raise ValueError(f"flag --{field.name} of {config_class.__qualname__} exists already")
        _define(values, field, kinds[field.name])


def read(values: flags.FlagValues, config_class: type[T]) -> T:
    """The dataclass with the parsed values of its flags."""
    fields = dataclasses.fields(config_class)  # type: ignore[arg-type]
    return config_class(**{field.name: values[field.name].value for field in fields})


def parse(
    argv: Sequence[str],
    *config_classes: type,
    known_only: bool = False,
    defaults: Mapping[str, Any] | None = None,
) -> tuple[Any, ...]:
    """One instance of each dataclass, read from `argv` (without the program's name).

    `defaults` take the place of those of the dataclasses.

    Raises UserError for an unknown flag (unless `known_only`), a value of the wrong type, a stray
    word, and whatever the dataclasses' own checks refuse.
    """
    values = flags.FlagValues()  # type: ignore[no-untyped-call]
    for config_class in config_classes:
        define(values, config_class)
    for name, value in (defaults or {}).items():
        values.set_default(name, value)
    with as_user_error(flags.Error, ValueError):
        words = values(["seed_rl", *argv], known_only=known_only)[1:]
        if words and not known_only:
            raise UserError(f"wanted only --flags, saw {' '.join(words)!r}")
        return tuple(read(values, config_class) for config_class in config_classes)


def usage(*config_classes: type, defaults: Mapping[str, Any] | None = None) -> str:
    """All flags of the dataclasses with their defaults, one paragraph for each dataclass.

    `defaults` take the place of those of the dataclasses.
    """
    lines = []
    for config_class in config_classes:
        lines.append(f"\n{(config_class.__doc__ or config_class.__name__).splitlines()[0]}")
        for field in dataclasses.fields(config_class):
            choices = field.metadata["choices"]
            known = f" ({'|'.join(choices)})" if choices else ""
            default = (defaults or {}).get(field.name, field.default)
            lines.append(f"  --{field.name}={default}{known}")
            lines.append(f"      {field.metadata['help']}")
    return "\n".join(lines)
