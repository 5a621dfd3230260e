"""A torso of the user's own: --network=module:factory."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from seed_rl import factories, specs
from seed_rl.specs import Nest

_NUM_ROWS = 2  # of the zeros that it is tried out on


def load(name: str, observation: Nest, rng: np.random.Generator) -> Any:
    """The torso that `factory(observation spec, rng)` makes, tried out on zeros.

    Raises ValueError where it isn't what seed_rl.agents.networks.torsos.Torso asks for, or where
    variables that it uses would be neither trained nor saved.
    """
    flag = f"--network={name}"
    factory = factories.find("network", name)
    try:
        inspect.signature(factory).bind(observation, rng)
    except TypeError as error:
        raise ValueError(
            f"{flag}: wanted to call it with (observation spec, rng): {error}"
        ) from error
    torso = factory(observation, rng)
    if not isinstance(torso, tf.Module) or not callable(torso):
        raise ValueError(
            f"{flag}: wanted a tf.Module with __call__(observation), whose variables are found and "
            f"saved, saw {torso!r}"
        )
    size = getattr(torso, "output_size", None)
    if type(size) is not int or size < 1:
        raise ValueError(f"{flag}: wanted an output_size of at least 1, an int, saw {size!r}")
    _require_floats(flag, torso.trainable_variables)
    # Before the call: what that makes would be made again and again.
    known = {variable.ref() for variable in torso.trainable_variables}
    with tf.GradientTape() as tape:
        features = torso(
            specs.map_nest(lambda leaf: tf.constant(leaf.zeros(_NUM_ROWS)), observation)
        )
    _require_variables(flag, known, tape.watched_variables())
    _require_features(flag, features, size, observation)
    return torso


def _require_floats(flag: str, variables: Sequence[tf.Variable]) -> None:
    for variable in variables:
        if variable.dtype != tf.float32:
            raise ValueError(
                f"{flag}: wanted trainable variables of float32, saw {variable.name} "
                f"{variable.dtype.name}{list(variable.shape)}: make it with dtype=tf.float32, or "
                "with trainable=False if it is not to be trained"
            )


def _require_variables(flag: str, known: set[Any], used: tuple[tf.Variable, ...]) -> None:
    lost = [variable.name for variable in used if variable.ref() not in known]
    if known and not lost:
        return
    seen = "none of those that it computes with" if used else "that it computes with none"
    if known:
        seen = f"that it computes also with {', '.join(lost[:3])}"
    raise ValueError(
        f"{flag}: wanted every tf.Variable made in the constructor and kept as an attribute, or "
        f"within tf.Modules and lists that are attributes, saw {seen}; others would be neither "
        "trained nor saved, and those of Keras layers are not found"
    )


def _require_features(flag: str, features: Any, size: int, observation: Nest) -> None:
    dtype = getattr(features, "dtype", None)
    shape = list(getattr(features, "shape", ()))
    if dtype != tf.float32 or shape != [_NUM_ROWS, size]:
        seen = type(features).__name__ if dtype is None else f"{tf.as_dtype(dtype).name}{shape}"
        raise ValueError(
            f"{flag}: wanted features float32{[_NUM_ROWS, size]}, [N, output_size], of "
            f"{_NUM_ROWS} observations {specs.describe(observation)}, saw {seen}"
        )
