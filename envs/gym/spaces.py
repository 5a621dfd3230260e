"""Spaces of gymnasium, and of the older gym, as specs; and actions back into what they hold.

Spaces are told by the names of their classes, so that gym need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from seed_rl.specs import LARGEST_BOUND, ArraySpec, EnvironmentSpecs, Nest, flatten

_KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Tuple", "Dict")
_MOST_CHOICES = 1 << 20  # already gigabytes of weights


def environment_specs(observation_space: Any, action_space: Any) -> EnvironmentSpecs:
    """The specs of single environments with these spaces. Raises ValueError for others."""
    specs = EnvironmentSpecs(
        observation=_observation_spec("observation_space", observation_space),
        action=_action_spec("action_space", action_space),
    )
    for field, spec, space in (
        ("observation_space", specs.observation, observation_space),
        ("action_space", specs.action, action_space),
    ):
        if not flatten(spec):
            raise ValueError(f"{field}: wanted at least one space within it, saw {space}")
    return specs


def kind_of(space: Any, field: str = "space") -> str:
    for base in type(space).__mro__:
        if base.__name__ in _KINDS:
            return base.__name__
    raise ValueError(f"{field}: wanted a space of a kind in {', '.join(_KINDS)}, saw {space}")


def _observation_spec(field: str, space: Any) -> Nest:
    """The field's name is for messages: 'observation_space/camera'."""
    match kind_of(space, field):
        case "Box":
            return _box_spec(field, space)
        case "Discrete":
            start = int(getattr(space, "start", 0))
            return _integers(field, space, (), start, start + int(space.n) - 1)
        case "MultiDiscrete":
            first = np.asarray(getattr(space, "start", 0))
            last = first + np.asarray(space.nvec) - 1
            _require_values(field, space)
            return _integers(field, space, last.shape, int(first.min()), int(last.max()))
        case "MultiBinary":
            _require_values(field, space)
            return ArraySpec(space.shape, "uint8", 0, 1)
        case "Tuple":
            return tuple(
                _observation_spec(f"{field}/{i}", part) for i, part in enumerate(space.spaces)
            )
        case _:
            return {
                key: _observation_spec(f"{field}/{key}", part) for key, part in space.spaces.items()
            }


def _action_spec(field: str, space: Any) -> Nest:
    match kind_of(space, field):
        case "Box":
            _require_values(field, space)
            _require_bounds(field, space)
            return ArraySpec(space.shape, "float32", -1, 1)
        case "Discrete":
            return _choice(field, space, int(space.n))
        case "MultiDiscrete" | "MultiBinary":
            # One leaf a choice: a spec has one maximum, and each choice may have its own.
            _require_values(field, space)
            return tuple(_choice(field, space, n) for n in _numbers_of_choices(space))
        case "Tuple":
            return tuple(_action_spec(f"{field}/{i}", part) for i, part in enumerate(space.spaces))
        case _:
            return {key: _action_spec(f"{field}/{key}", part) for key, part in space.spaces.items()}


def _box_spec(field: str, space: Any) -> ArraySpec:
    _require_values(field, space)
    # Networks compute in float32; half the bytes on the wire, too.
    dtype = np.dtype("float32" if space.dtype == np.float64 else space.dtype)
    low, high = np.asarray(space.low), np.asarray(space.high)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return ArraySpec(space.shape, dtype.name)
    bounds = (low.min().item(), high.max().item())
    if dtype.kind != "f" or (np.all(low == low.min()) and np.all(high == high.max())):
        return ArraySpec(space.shape, dtype.name, *bounds)
    if max(-bounds[0], bounds[1]) >= LARGEST_BOUND:
        return ArraySpec(space.shape, dtype.name)  # of some there are none
    pairs = zip(low.ravel().tolist(), high.ravel().tolist(), strict=True)
    return ArraySpec(space.shape, dtype.name, *bounds, element_bounds=tuple(pairs))


def _integers(
    field: str, space: Any, shape: tuple[int, ...], minimum: int, maximum: int
) -> ArraySpec:
    for dtype in ("int32", "int64"):
        if np.iinfo(dtype).min <= minimum and maximum <= np.iinfo(dtype).max:
            return ArraySpec(shape, dtype, minimum, maximum)
    raise ValueError(
        f"{field}: wanted numbers that an int64 holds, saw {minimum} to {maximum} in {space}"
    )


def _choice(field: str, space: Any, n: int) -> ArraySpec:
    if n > _MOST_CHOICES:
        raise ValueError(
            f"{field}: wanted at most {_MOST_CHOICES} actions to choose from, since networks have "
            f"an output for each, saw {n} in {space}; MultiDiscrete makes several small choices of "
            "a large one"
        )
    return ArraySpec((), "int32", 0, n - 1)


def _require_values(field: str, space: Any) -> None:
    if 0 in space.shape:
        raise ValueError(
            f"{field}: wanted at least one number, saw shape {list(space.shape)} in {space}; "
            "leave it out"
        )


def _require_bounds(field: str, space: Any) -> None:
    """Raises ValueError where [-1, 1] can't be mapped to what this space of actions holds."""
    wanted = "wanted a Box of floats with finite bounds"
    advice = "give it others with gymnasium.wrappers.TransformAction"
    if np.dtype(space.dtype).kind != "f":
        raise ValueError(
            f"{field} {space} holds {space.dtype}, {wanted}: use Discrete or MultiDiscrete, "
            f"or {advice}"
        )
    # Older gym's boxes end at the largest float where they have no end.
    largest = np.finfo(space.dtype).max
    if not (np.all(np.abs(space.low) < largest) and np.all(np.abs(space.high) < largest)):
        raise ValueError(
            f"{field} {space} has no bounds, {wanted}: leave out "
            f"gymnasium.wrappers.ClipAction, which takes them away, or {advice}"
        )


def _numbers_of_choices(space: Any) -> list[int]:
    if kind_of(space) == "MultiBinary":
        return [2] * int(np.prod(space.shape))
    return [int(n) for n in np.ravel(space.nvec)]


def leaf_spaces(space: Any) -> list[Any]:
    """The spaces of single arrays, in the order in which the spec's leaves are flattened."""
    match kind_of(space):
        case "Tuple":
            return [leaf for part in space.spaces for leaf in leaf_spaces(part)]
        case "Dict":
            return [leaf for key in sorted(space.spaces) for leaf in leaf_spaces(space.spaces[key])]
        case _:
            return [space]


def action_decoder(space: Any) -> Callable[[Nest], Any]:
    """A function from actions, leaves `[n, ...]`, to what step() of n environments in one takes.

    What it returns are new arrays, except that it keeps tuples and dicts. Boxes are mapped from
    [-1, 1] elementwise: exactly to low at -1, to high at 1.
    """
    match kind_of(space):
        case "Box":
            return _box_decoder(space)
        case "Discrete":
            start, dtype = int(getattr(space, "start", 0)), getattr(space, "dtype", np.int64)
            if not start:
                return lambda action: action.astype(dtype)
            return lambda action: action.astype(dtype) + start
        case "MultiDiscrete" | "MultiBinary":
            start = getattr(space, "start", 0)
            return lambda action: (
                np.stack(action, axis=-1).reshape(-1, *space.shape) + start
            ).astype(space.dtype)
        case "Tuple":
            parts = [action_decoder(part) for part in space.spaces]
            return lambda action: tuple(
                part(choice) for part, choice in zip(parts, action, strict=True)
            )
        case _:
            by_key = {key: action_decoder(part) for key, part in space.spaces.items()}
            return lambda action: {key: part(action[key]) for key, part in by_key.items()}


def _box_decoder(space: Any) -> Callable[[np.ndarray], np.ndarray]:
    low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
    if np.all(low == -1) and np.all(high == 1):
        return lambda action: action.astype(space.dtype)

    def decode(action: np.ndarray) -> np.ndarray:
        share = (action.astype(np.float64) + 1) / 2
        # Not low + share * (high - low), which is off by a rounding at 1.
        value = low * (1 - share) + high * share
        return np.minimum(np.maximum(value, low), high).astype(space.dtype)

    return decode


def action_splitter(space: Any) -> Callable[[Any], list[Any]]:
    """A function from what `action_decoder` returns to what step() of each environment takes."""
    match kind_of(space):
        case "Discrete":
            return lambda batch: batch.tolist()
        case "Tuple":
            parts = [action_splitter(part) for part in space.spaces]
            return lambda batch: list(
                zip(*(part(each) for part, each in zip(parts, batch, strict=True)), strict=True)
            )
        case "Dict":
            by_key = {key: action_splitter(part) for key, part in space.spaces.items()}
            return lambda batch: [
                dict(zip(by_key, row, strict=True))
                for row in zip(*(part(batch[key]) for key, part in by_key.items()), strict=True)
            ]
        case _:
            return list
