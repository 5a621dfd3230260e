"""Rows of environments as bytes: the one field of ActRequest and ActResponse.

A message holds the columns of n rows, field after field, little-endian and without padding: the n
values of the first field, then the n values of the second, and so on. Which fields there are, in
what order and how large, is the Layout; both ends compare theirs in the handshake, so messages say
nothing about it. n follows from the length.

`encode` and `decode` work on the serialised protobuf message, whose bytes field is wrapped here by
hand: three to six bytes in front. Going through generated classes would copy every observation
twice more on either side.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Sequence

import numpy as np

from seed_rl import specs
from seed_rl.specs import ArraySpec, Nest
from seed_rl.types import StepType

NUM_STEP_FIELDS = 4  # env_id, step_type, reward, raw_reward; the observation's leaves follow

_COLUMNS_TAG = 0x0A  # protobuf field 1, length-delimited
_ALL_STEP_TYPES = bytes(StepType)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Names, shapes and dtypes of the fields of one row, in their order on the wire."""

    fields: tuple[tuple[str, ArraySpec], ...]

    def __post_init__(self) -> None:
        for name, spec in self.fields:
            if np.dtype(spec.dtype).kind not in "biuf":
                raise ValueError(f"{name}: saw dtype {spec.dtype}, wanted numbers or booleans")
        if not self.row_bytes:
            raise ValueError(f"a row of {self} has no bytes, wanted at least one value")

    @functools.cached_property
    def row_bytes(self) -> int:
        return sum(spec.num_bytes for _, spec in self.fields)

    @functools.cached_property
    def hash(self) -> str:
        """Hexadecimal digest, equal where and only where the layouts are."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:32]

    @functools.cached_property
    def dtypes(self) -> tuple[np.dtype, ...]:
        return tuple(np.dtype(spec.dtype).newbyteorder("<") for _, spec in self.fields)

    def to_json(self) -> str:
        return json.dumps([[name, specs.to_json(spec)] for name, spec in self.fields])

    @staticmethod
    def from_json(text: str) -> Layout:
        """The inverse of `to_json`. Raises ValueError on anything that it does not write."""
        try:
            value = json.loads(text)
        except RecursionError:
            raise ValueError(f"wanted a list of fields, saw {text[:100]}...") from None
        match value:
            case [*pairs]:
                return Layout(tuple(_field_from_json(pair) for pair in pairs))
        raise ValueError(f"wanted a list of fields, saw {text[:100]}")

    def __str__(self) -> str:
        return ", ".join(f"{name} {spec}" for name, spec in self.fields)

    def difference(self, wanted: Layout) -> str:
        """The first field in which this layout is not the wanted one, in words; '' where equal."""
        for (name, spec), (wanted_name, wanted_spec) in zip(
            self.fields, wanted.fields, strict=False
        ):
            if (name, spec) != (wanted_name, wanted_spec):
                return f"saw {name} {spec}, wanted {wanted_name} {wanted_spec}"
        if len(self.fields) != len(wanted.fields):
            return f"saw {len(self.fields)} fields ({self}), wanted {len(wanted.fields)} ({wanted})"
        return ""

    def empty(self, rows: int) -> list[np.ndarray]:
        """Columns of that many rows, all zero."""
        return [np.zeros((rows, *spec.shape), spec.dtype) for _, spec in self.fields]

    def encode(self, columns: Sequence[np.ndarray]) -> bytes:
        """The message that carries the columns `[n, ...]`. Raises ValueError naming the field."""
        if len(columns) != len(self.fields):
            raise ValueError(f"saw {len(columns)} columns, wanted {len(self.fields)}: {self}")
        n = len(columns[0]) if np.ndim(columns[0]) else 0
        if not n:
            raise ValueError(f"{self.fields[0][0]}: saw 0 rows, wanted at least one")
        parts: list[bytes | memoryview] = [self.header(n)]
        for column, dtype, (name, spec) in zip(columns, self.dtypes, self.fields, strict=True):
            if not isinstance(column, np.ndarray):
                raise ValueError(f"{name}: saw {type(column).__name__}, wanted a numpy array")
            if column.dtype != dtype or column.shape != (n, *spec.shape):
                raise ValueError(
                    f"{name}: saw {column.dtype}{list(column.shape)}, "
                    f"wanted {spec.dtype}{[n, *spec.shape]}"
                )
            # join() copies from any contiguous buffer, so this is the only copy of a column.
            parts.append(column.data if column.flags.c_contiguous else column.tobytes())
        return b"".join(parts)

    def first_rows(self, columns: Sequence[np.ndarray], n: int) -> list[np.ndarray]:
        """The first n rows of columns that may have more. Raises ValueError naming the field."""
        rows = [np.asarray(column)[:n] for column in columns]
        if len(rows) != len(self.fields):
            raise ValueError(f"saw {len(rows)} columns, wanted {len(self.fields)}: {self}")
        for column, dtype, (name, spec) in zip(rows, self.dtypes, self.fields, strict=True):
            if column.dtype != dtype or column.shape != (n, *spec.shape):
                raise ValueError(
                    f"{name}: saw {column.dtype}{list(column.shape)}, "
                    f"wanted {spec.dtype}{[n, *spec.shape]}"
                )
        return rows

    def decode(self, message: bytes) -> list[np.ndarray]:
        """The columns `[n, ...]`, read-only views of the message. Raises ValueError."""
        start, n = self.locate(message)
        columns = []
        for dtype, (_, spec) in zip(self.dtypes, self.fields, strict=True):
            count = n * math.prod(spec.shape)
            column = np.frombuffer(message, dtype, count, start).reshape(n, *spec.shape)
            columns.append(column)
            start += count * dtype.itemsize
        return columns

    def locate(self, message: bytes) -> tuple[int, int]:
        """Where in the message the columns start, and how many rows they hold."""
        start, length = _unwrap(message)
        n, rest = divmod(length, self.row_bytes)
        if rest:
            raise ValueError(
                f"columns: saw {length} bytes, wanted a multiple of {self.row_bytes}, "
                f"the size of one row of {self}"
            )
        if not n:
            raise ValueError("columns: saw 0 rows, wanted at least one")
        return start, n

    def header(self, n: int) -> bytes:
        """What stands before the columns of n rows in a message."""
        return _header(n * self.row_bytes)


def step_layout(observation_spec: Nest) -> Layout:
    """What an actor sends of one environment's step."""
    names = [
        f"observation/{path}" if path else "observation" for path in specs.paths(observation_spec)
    ]
    leaves = [
        ArraySpec(leaf.shape, leaf.dtype, bits=leaf.bits)
        for leaf in specs.flatten(observation_spec)
    ]
    return Layout(
        (
            ("env_id", ArraySpec((), "int32")),
            ("step_type", ArraySpec((), "uint8")),
            ("reward", ArraySpec((), "float32")),
            ("raw_reward", ArraySpec((), "float32")),
            *zip(names, leaves, strict=True),
        )
    )


def action_layout(action_spec: Nest) -> Layout:
    """What the learner answers to one environment.

    Bounds are part of it, unlike an observation's: six actions instead of eighteen are as many
    bytes and yet another game.
    """
    names = [f"action/{path}" if path else "action" for path in specs.paths(action_spec)]
    leaves = [
        ArraySpec(leaf.shape, leaf.dtype, _finite(leaf.minimum), _finite(leaf.maximum))
        for leaf in specs.flatten(action_spec)
    ]
    return Layout(tuple(zip(names, leaves, strict=True)))


class RowCheck:
    """Checks the messages of one lease, and tells the first row of each of its environments.

    Nothing here loops over rows in Python: a good message of n rows costs a few microseconds.

    Args:
      layout: the step layout.
      first_env_id: the lease's first environment.
      num_envs: the lease's number of environments.
      started: bool `[num_envs]`, which of them have sent rows before; none where it is None.
    """

    def __init__(
        self, layout: Layout, first_env_id: int, num_envs: int, started: np.ndarray | None = None
    ) -> None:
        self._layout = layout
        self._first_env_id = first_env_id
        self._num_envs = num_envs
        env_ids = np.arange(first_env_id, first_env_id + num_envs, dtype="<i4")
        self._all_env_ids = env_ids.tobytes()
        self._started = np.zeros(num_envs, bool) if started is None else started.copy()
        self._all_started = bool(self._started.all())
        # Floats to look through: field, dtype, its place in a row and number of values. The two
        # rewards lie side by side and are looked through as one.
        self._floats: list[tuple[np.dtype, int, int]] = [(np.dtype("<f4"), 5, 2)]
        place = 13
        for dtype, (_, spec) in list(zip(layout.dtypes, layout.fields, strict=True))[
            NUM_STEP_FIELDS:
        ]:
            if dtype.kind == "f" and spec.num_bytes:
                self._floats.append((dtype, place, math.prod(spec.shape)))
            place += spec.num_bytes

    def check(self, message: bytes, start: int, n: int) -> np.ndarray | None:
        """Raises ValueError naming the environment and the field where a row is wrong.

        Args:
          message: what an actor sent.
          start: where its columns start, from `Layout.locate`.
          n: its number of rows, likewise.

        Returns:
          bool `[n]`, true where the row is the first of its environment under this lease; None
          where there is no such row.
        """
        id_bytes = message[start : start + 4 * n]
        if id_bytes != self._all_env_ids:
            self._check_env_ids(np.frombuffer(id_bytes, "<i4"))
        # What remains after deleting the good values are the bad ones.
        if message[start + 4 * n : start + 5 * n].translate(None, _ALL_STEP_TYPES):
            self._explain_step_type(message)
        for dtype, place, size in self._floats:
            values = np.frombuffer(message, dtype, n * size, start + n * place)
            if np.count_nonzero(np.isfinite(values)) != len(values):
                self._explain_float(message)
        if self._all_started:
            return None
        return self._check_first(message)

    def _check_env_ids(self, env_ids: np.ndarray) -> None:
        index = env_ids.astype(np.int64) - self._first_env_id
        outside = (index < 0) | (index >= self._num_envs)
        if outside.any():
            raise ValueError(
                f"env_id: saw {env_ids[outside.argmax()]}, wanted one of this actor's "
                f"{self._first_env_id}..{self._first_env_id + self._num_envs - 1}"
            )
        if len(index) > 1:
            counts = np.bincount(index, minlength=self._num_envs)
            if counts.max() > 1:
                twice = self._first_env_id + int(counts.argmax())
                raise ValueError(
                    f"env_id: saw {twice} {counts.max()} times, wanted each at most once a message"
                )

    def _check_first(self, message: bytes) -> np.ndarray | None:
        env_ids, step_types = self._layout.decode(message)[:2]
        index = env_ids - self._first_env_id
        new = ~self._started[index]
        wrong = new & (step_types != StepType.FIRST)
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(
                f"environment {env_ids[row]}: its first step_type after joining is "
                f"{StepType(step_types[row]).name}, wanted FIRST: reset the environments first"
            )
        self._started[index] = True
        self._all_started = bool(self._started.all())
        return new if new.any() else None

    def _explain_step_type(self, message: bytes) -> None:
        env_ids, step_types = self._layout.decode(message)[:2]
        row = int((step_types > max(StepType)).argmax())
        raise ValueError(
            f"environment {env_ids[row]}: step_type is {step_types[row]}, wanted "
            + ", ".join(f"{kind.value} ({kind.name})" for kind in StepType)
        )

    def _explain_float(self, message: bytes) -> None:
        columns = self._layout.decode(message)
        for (name, _), column in list(zip(self._layout.fields, columns, strict=True))[2:]:
            if column.dtype.kind != "f":
                continue
            values = column.reshape(len(column), -1)
            bad = ~np.isfinite(values)
            if bad.any():
                row, value = divmod(int(bad.argmax()), values.shape[1])
                raise ValueError(
                    f"environment {columns[0][row]}: {name} holds {values[row, value]}, "
                    f"wanted finite numbers"
                )


def _field_from_json(pair: object) -> tuple[str, ArraySpec]:
    match pair:
        case [str(name), value]:
            try:
                spec = specs.from_json(value)
            except TypeError as error:  # an unknown dtype or bound
                raise ValueError(f"{name}: {error}") from error
            if isinstance(spec, ArraySpec):
                return name, spec
    raise ValueError(f"wanted a name and an array, saw {pair!r}")


def _finite(bound: float | None) -> float | None:
    return float(bound) if bound is not None and math.isfinite(bound) else None


@functools.lru_cache(maxsize=1024)
def _header(length: int) -> bytes:
    varint = bytearray()
    rest = length
    while rest > 0x7F:
        varint.append(rest & 0x7F | 0x80)
        rest >>= 7
    varint.append(rest)
    return bytes([_COLUMNS_TAG, *varint])


def _unwrap(message: bytes) -> tuple[int, int]:
    """Start and length of the bytes field that makes up the whole message."""
    if not message:
        return 0, 0  # an empty bytes field is left out of a message
    length = shift = 0
    for start in range(1, min(len(message), 11)):
        byte = message[start]
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if message[0] == _COLUMNS_TAG and start + 1 + length == len(message):
                return start + 1, length
            break
    raise ValueError(f"saw {len(message)} bytes that are not one field 'columns' of type bytes")
