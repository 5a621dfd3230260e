"""Mistakes that the user can mend: programs print them in one line, without a traceback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class UserError(Exception):
    """What is wrong, what was seen and wanted, and what to type next."""


@contextlib.contextmanager
def as_user_error(*kinds: type[Exception]) -> Iterator[None]:
    """Raises exceptions of these kinds as UserErrors with the same words."""
    try:
        yield
    except kinds as error:
        raise UserError(str(error)) from error
