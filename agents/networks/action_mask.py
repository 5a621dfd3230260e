"""Masks of actions, which environments give in their observations.

A dict observation may have the key `action_mask` at its top: integers or bools `[n]`, 0 for each
action that can't be taken now. n counts the actions of a choice; of several choices, one after the
other in the order of the flattened action. Numbers have none. Networks don't see it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seed_rl import specs
from seed_rl.specs import ArraySpec, EnvironmentSpecs, Nest

KEY = "action_mask"


def find(observation: Nest) -> Any:
    """The mask in an observation, or its spec; None where there is none."""
    return observation.get(KEY) if isinstance(observation, dict) else None


def without(observation: Nest) -> Nest:
    """The observation, or its spec, as networks see it."""
    if find(observation) is None:
        return observation
    return {key: part for key, part in observation.items() if key != KEY}


def require_fit(environment: EnvironmentSpecs) -> None:
    """Raises ValueError where there is a mask that is not one of the environment's actions."""
    mask = find(environment.observation)
    if mask is None:
        return
    choices = [leaf for leaf in specs.flatten(environment.action) if specs.is_choice(leaf)]
    size = sum(choice.num_choices for choice in choices)
    if (
        not isinstance(mask, ArraySpec)
        or mask.shape != (size,)
        or np.dtype(mask.dtype).kind not in "biu"
        or not size
    ):
        raise ValueError(
            f"observation {KEY}: wanted integers or bools [{size}], one for each of the actions "
            f"{specs.describe(environment.action)}, saw {specs.describe(mask)}; another name than "
            f"{KEY} makes it a part of the observation like others"
        )
