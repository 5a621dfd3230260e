"""Spaces of gymnasium, and of the older gym, as specs; and actions back into what they hold.

Spaces are told by the names of their classes, so that gym need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from seed_rl.specs import ArraySpec, EnvironmentSpecs, Nest

_KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Tuple", "Dict")


def environment_specs(env: Any) -> EnvironmentSpecs:
    return EnvironmentSpecs(
        observation=_observation_spec(env.observation_space),
        action=_action_spec(env.action_space),
    )


def _kind(space: Any) -> str:
    for base in type(space).__mro__:
        if base.__name__ in _KINDS:
            return base.__name__
    raise ValueError(f"wanted a space of a kind in {', '.join(_KINDS)}, saw {space}")


def _observation_spec(space: Any) -> Nest:
    match _kind(space):
        case "Box":
            return _box_spec(space)
        case "Discrete":
            start = int(getattr(space, "start", 0))
            return ArraySpec((), "int32", start, start + int(space.n) - 1)
        case "MultiDiscrete":
            first = np.asarray(getattr(space, "start", 0))
            last = first + np.asarray(space.nvec) - 1
            return ArraySpec(last.shape, "int32", int(first.min()), int(last.max()))
        case "MultiBinary":
            return ArraySpec(space.shape, "uint8", 0, 1)
        case "Tuple":
            return tuple(_observation_spec(part) for part in space.spaces)
        case _:
            return {key: _observation_spec(part) for key, part in space.spaces.items()}


def _action_spec(space: Any) -> Nest:
    match _kind(space):
        case "Box":
            return _box_spec(space)
        case "Discrete":
            return ArraySpec((), "int32", 0, int(space.n) - 1)
        case "MultiDiscrete" | "MultiBinary":
            # One leaf a choice: a spec has one maximum, and each choice may have its own.
            return tuple(ArraySpec((), "int32", 0, n - 1) for n in _numbers_of_choices(space))
        case "Tuple":
            return tuple(_action_spec(part) for part in space.spaces)
        case _:
            return {key: _action_spec(part) for key, part in space.spaces.items()}


def _box_spec(space: Any) -> ArraySpec:
    # Networks compute in float32; half the bytes on the wire, too.
    dtype = "float32" if space.dtype == np.float64 else np.dtype(space.dtype).name
    low, high = np.unique(space.low), np.unique(space.high)
    bounds: tuple[Any, ...] = ()
    if len(low) == len(high) == 1 and np.isfinite([low[0], high[0]]).all():
        bounds = (low[0].item(), high[0].item())
    return ArraySpec(space.shape, dtype, *bounds)


def _numbers_of_choices(space: Any) -> list[int]:
    if _kind(space) == "MultiBinary":
        return [2] * int(np.prod(space.shape))
    return [int(n) for n in np.ravel(space.nvec)]


def leaf_spaces(space: Any) -> list[Any]:
    """The spaces of single arrays, in the order in which the spec's leaves are flattened."""
    match _kind(space):
        case "Tuple":
            return [leaf for part in space.spaces for leaf in leaf_spaces(part)]
        case "Dict":
            return [leaf for key in sorted(space.spaces) for leaf in leaf_spaces(space.spaces[key])]
        case _:
            return [space]


def action_decoder(space: Any) -> Callable[[Nest, int], Any]:
    """A function from actions with leaves `[n, ...]` and i to what the i-th step() takes."""
    match _kind(space):
        case "Box":
            return lambda action, i: np.array(action[i], space.dtype)
        case "Discrete":
            start = int(getattr(space, "start", 0))
            return lambda action, i: int(action[i]) + start
        case "MultiDiscrete" | "MultiBinary":
            start = getattr(space, "start", 0)

            def decode(action: Nest, i: int) -> np.ndarray:
                choices = np.reshape([choice[i] for choice in action], space.shape)
                return (choices + start).astype(space.dtype)

            return decode
        case "Tuple":
            parts = [action_decoder(part) for part in space.spaces]
            return lambda action, i: tuple(
                part(choice, i) for part, choice in zip(parts, action, strict=True)
            )
        case _:
            by_key = {key: action_decoder(part) for key, part in space.spaces.items()}
            return lambda action, i: {key: part(action[key], i) for key, part in by_key.items()}
