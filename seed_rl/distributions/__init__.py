"""Distributions over actions, as functions of the numbers that a policy head puts out.

All have `num_parameters`, `log_prob`, `entropy`, `kl`, `sample` and `mode`, on parameters
`[..., P]` and action nests with leaves `[..., *shape]`, and can leave out choices: `masked`.
"""

from __future__ import annotations

import numpy as np

from seed_rl import specs
from seed_rl.distributions.categorical import Categorical, allowed, best, masked
from seed_rl.distributions.joint import Joint
from seed_rl.distributions.tanh_normal import TanhNormal
from seed_rl.specs import ArraySpec, Nest

__all__ = [
    "Categorical",
    "Distribution",
    "Joint",
    "TanhNormal",
    "allowed",
    "best",
    "for_action",
    "masked",
]

Distribution = Categorical | TanhNormal | Joint


def for_action(spec: Nest) -> Distribution:
    """The distribution that a policy over such actions needs.

    Choices are integers from 0 to a maximum, without a shape; all else are float32 arrays of any
    shape in [-1, 1], which environments map to their own bounds. Raises ValueError for others.
    """
    leaves = specs.flatten(spec)
    if not leaves:
        raise ValueError(f"action spec {spec}: wanted at least one action")
    parts = tuple(map(_for_leaf, specs.paths(spec), leaves))
    return parts[0] if isinstance(spec, ArraySpec) else Joint(parts, spec)


def _for_leaf(path: str, spec: ArraySpec) -> Categorical | TanhNormal:
    if specs.is_choice(spec):
        return Categorical(spec.num_choices, spec.dtype)
    bounds = spec.minimum, spec.maximum
    if spec.dtype == "float32" and bounds == (-1, 1) and spec.num_bytes:
        return TanhNormal(spec.shape)
    wanted = "one integer from 0 to a maximum, or float32 in [-1, 1]"
    if np.dtype(spec.dtype).kind == "f":
        advice = "wrap the environment so that it takes such numbers and maps them to its own"
    else:
        advice = "wrap the environment so that it numbers its actions, each in a leaf of its own"
    raise ValueError(f"action spec {path or 'action'} {spec}: wanted {wanted}; {advice}")
