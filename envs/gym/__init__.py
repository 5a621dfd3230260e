"""Any environment registered with gymnasium, by its id."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing

from seed_rl.config import option
from seed_rl.envs.environment import Environments
from seed_rl.envs.gym.environments import GymEnvironments, specs_of
from seed_rl.envs.gym.vector import VectorEnvironments, vector_specs_of
from seed_rl.specs import EnvironmentSpecs


@dataclasses.dataclass(frozen=True)
class Config:
    """gym: an environment that gymnasium can make."""

    game: str = option("CartPole-v1", "Id of the gymnasium environment, such as CartPole-v1.")


def specs(config: Config) -> EnvironmentSpecs:
    if _makes_only_vectors(config.game):
        return vector_specs_of(lambda seeds: gymnasium.make_vec(config.game, len(seeds)))
    return specs_of(lambda: _make_one(config.game))


def make(config: Config, env_ids: Sequence[int], seed: int) -> Environments:
    if _makes_only_vectors(config.game):
        return VectorEnvironments(
            lambda seeds: gymnasium.make_vec(config.game, len(seeds)), False, env_ids, seed
        )
    return GymEnvironments(lambda: _make_one(config.game), env_ids, seed)


def describe(config: Config) -> str:
    return f"gymnasium's {config.game}"


def _makes_only_vectors(game: str) -> bool:
    module, _, name = game.rpartition(":")
    if module:  # it registers the id
        importlib.import_module(module)
    spec = gymnasium.registry.get(name)
    return spec is not None and spec.entry_point is None


def _make_one(game: str) -> Any:
    try:
        # The checker would repeat what the adapter checks, at a cost for every step.
        env = gymnasium.make(game, disable_env_checker=True)
    except gymnasium.error.UnregisteredEnv as error:
        raise ValueError(
            f"--game={game}: {error} Write 'module:{game}' if a module of yours registers it; for "
            "Atari use --environment=atari --game=Pong"
        ) from error
    except gymnasium.error.Error as error:  # too old a version, something not installed
        raise ValueError(f"--game={game}: {error}") from error
    # ALE's environments know how many frames a step of theirs takes, an int or a range.
    frame_skip = getattr(env.unwrapped, "_frameskip", 1)
    if frame_skip != 1:
        env.close()
        raise ValueError(
            f"--game={game} skips frames by itself (wanted a frame skip of 1, saw {frame_skip}), "
            "so that frames would be counted wrongly: use --environment=atari --game=Pong (or "
            "your game), whose action repeat is --num_action_repeats"
        )
    return without_order_checks(env)


def without_order_checks(env: Any) -> Any:
    """The environment without the wrapper that looks, at each step, whether there was a reset.

    The adapter never steps before one, and the look is 5 % of a step of CartPole.
    """
    if isinstance(env, OrderEnforcing):
        return without_order_checks(env.env)
    if isinstance(env, gymnasium.Wrapper):
        env.env = without_order_checks(env.env)
    return env
