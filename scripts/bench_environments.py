#!/usr/bin/env python3
"""Measures environments as an actor steps them, against a bare loop over the same ones.

    python scripts/bench_environments.py                                     all that is installed
    python scripts/bench_environments.py gym:Acrobot-v1 mujoco:Hopper-v5 --json

Both play the same random actions, made beforehand, in turn within one process, and reset on the
step after an episode's end. `bare_share` is the bare loop's time as a share of the adapter's: 1
where the adapter costs nothing. `vector` and `envpool` are vectors that a function of the user
makes: `gymnasium.make_vec(GAME, num_envs)`, and `envpool.make(GAME, ...)`. `dmlab` needs a build of
deepmind_lab, or the double of the tests: PYTHONPATH=tests/tools/dmlab_double.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import bench_tools
import gymnasium
import numpy as np

from seed_rl.envs import registry
from seed_rl.envs.environment import Environments, Family
from seed_rl.envs.gym.factory import FactoryFamily
from seed_rl.envs.gym.spaces import action_decoder, action_splitter
from seed_rl.envs.seeding import environment_seed, episode_seed
from seed_rl.specs import ArraySpec, Nest, map_nest

SEED = 0
# Actions are taken from a pool, so that none of the time is for drawing them.
POOL = 64


def actions_of(spec: Nest, n: int) -> list[Nest]:
    """Random actions, leaves `[n, ...]`."""
    rng = np.random.default_rng(SEED)

    def draw(leaf: ArraySpec) -> np.ndarray:
        shape = (n, *leaf.shape)
        if np.dtype(leaf.dtype).kind == "f":
            return rng.uniform(leaf.minimum, leaf.maximum, shape).astype(leaf.dtype)
        return rng.integers(leaf.num_choices, size=shape, dtype=leaf.dtype)

    return [map_nest(draw, spec) for _ in range(POOL)]


class Adapter:
    """Environments of ours."""

    def __init__(self, environments: Environments, actions: list[Nest]) -> None:
        self._environments = environments
        self._actions: Iterator[Nest] = itertools.cycle(actions)
        environments.reset()

    def step(self) -> None:
        self._environments.step(next(self._actions))


class BareEnvs:
    """Single environments of gymnasium."""

    def __init__(self, game: str, n: int, actions: list[Nest]) -> None:
        self._envs = [gymnasium.make(game, disable_env_checker=True) for _ in range(n)]
        space = self._envs[0].action_space
        decode, split = action_decoder(space), action_splitter(space)
        self._actions = itertools.cycle([split(decode(action)) for action in actions])
        self._has_ended = [False] * n
        # As the adapter does: how long physics takes depends on where a robot lies.
        for i, env in enumerate(self._envs):
            env.reset(seed=environment_seed(SEED, i))

    def step(self) -> None:
        for i, (env, action) in enumerate(zip(self._envs, next(self._actions), strict=True)):
            if self._has_ended[i]:
                env.reset()
                self._has_ended[i] = False
            else:
                _, _, terminated, truncated, _ = env.step(action)
                self._has_ended[i] = terminated or truncated


class BareVector:
    """A vector environment."""

    def __init__(self, vector: Any, actions: list[Nest]) -> None:
        self._vector = vector
        decode = action_decoder(vector.single_action_space)
        self._actions = itertools.cycle([decode(action) for action in actions])
        vector.reset()

    def step(self) -> None:
        self._vector.step(next(self._actions))


class BareFootball:
    """gfootball's own environments, whose matches are those that the adapter plays."""

    def __init__(self, game: str, n: int, actions: list[Nest]) -> None:
        from seed_rl.envs.football.environments import create

        config = family_of("football", game)[1]
        self._envs = [create(config.game, config.reward_experiment, (72, 96)) for _ in range(n)]
        self._rngs = [np.random.default_rng(environment_seed(SEED, i)) for i in range(n)]
        self._actions = itertools.cycle([action.tolist() for action in actions])
        self._has_ended = [True] * n

    def step(self) -> None:
        for i, (env, action) in enumerate(zip(self._envs, next(self._actions), strict=True)):
            if self._has_ended[i]:
                seed = int(self._rngs[i].integers(2**31))
                env.unwrapped._config["game_engine_random_seed"] = seed
                env.unwrapped._config["reverse_team_processing"] = bool(seed % 2)
                env.reset()
                self._has_ended[i] = False
            else:
                _, _, self._has_ended[i], _ = env.step(action)


class BareDmlab:
    """deepmind_lab.Lab itself, with the levels that the adapter plays."""

    def __init__(self, game: str, n: int, actions: list[Nest]) -> None:
        import deepmind_lab

        from seed_rl.envs import dmlab
        from seed_rl.envs.dmlab import environments, levels

        config = family_of("dmlab", game)[1]
        level, settings = levels.path(config.game), dmlab.lab_settings(config)
        names = [environments.FRAME]
        if levels.has_instruction(level):
            names.append(environments.INSTRUCTION)
        self._labs = [deepmind_lab.Lab(level, names, config=settings) for _ in range(n)]
        self._choices = environments.ACTIONS
        self._num_steps = config.num_action_repeats
        self._actions = itertools.cycle([action.tolist() for action in actions])
        self._episodes = [0] * n

    def step(self) -> None:
        for i, (lab, action) in enumerate(zip(self._labs, next(self._actions), strict=True)):
            if not lab.is_running():
                episode = self._episodes[i]
                lab.reset(episode=episode, seed=episode_seed(SEED, i, episode))
                self._episodes[i] += 1
            else:
                lab.step(self._choices[action], num_steps=self._num_steps)
            if lab.is_running():
                lab.observations()


def make_atari(game: str, n: int, actions: list[Nest]) -> BareVector:
    """The emulators that the adapter has, set up in the same way, without it."""
    family, config = family_of("atari", game)
    emulators: Any = family.make(config, range(n), SEED)
    return BareVector(emulators._envs, actions)


def make_envpool(game: str, num_envs: int, seeds: list[int]) -> Any:
    import envpool

    return envpool.make(game, env_type="gymnasium", num_envs=num_envs, seed=seeds)


# What makes the bare environments of a family: from a game, a number, and a pool of actions.
BARE: dict[str, Callable[[str, int, list[Nest]], Any]] = {
    "gym": BareEnvs,
    "mujoco": BareEnvs,
    "vector": lambda game, n, actions: BareVector(gymnasium.make_vec(game, n), actions),
    "atari": make_atari,
    "dmlab": BareDmlab,
    "football": BareFootball,
    "envpool": lambda game, n, actions: BareVector(make_envpool(game, n, list(range(n))), actions),
}
DEFAULTS = {
    "gym:CartPole-v1": "gymnasium",
    "mujoco:HalfCheetah-v5": "mujoco",
    "vector:CartPole-v1": "gymnasium",
    "envpool:HalfCheetah-v4": "envpool",
    "atari:Pong": "ale_py",
    "dmlab:rooms_watermaze": "deepmind_lab",
    "football:academy_empty_goal_close": "gfootball",
}  # each with the package that it needs


def family_of(name: str, game: str) -> tuple[Family, Any]:
    """A family and its config."""
    if name in ("vector", "envpool"):

        def make_vector(num_envs: int) -> Any:
            return gymnasium.make_vec(game, num_envs)

        def make_seeded(num_envs: int, seeds: list[int]) -> Any:
            return make_envpool(game, num_envs, seeds)

        family = FactoryFamily(name, make_vector if name == "vector" else make_seeded)
        return family, family.Config()
    loaded = registry.load(name)
    return loaded, loaded.Config(game=game) if game else loaded.Config()


def measure(case: str, n: int, seconds: float) -> list[dict[str, Any]]:
    name, _, game = case.partition(":")
    family, config = family_of(name, game)
    game = game or config.game
    environments = family.make(config, range(n), SEED)
    actions = actions_of(environments.specs.action, n)
    bare, adapter = BARE[name](game, n, actions), Adapter(environments, actions)

    def steps(step: Callable[[], None]) -> Callable[[], None]:
        def take() -> None:
            for _ in range(POOL):
                step()

        return take

    calls = {"bare": steps(bare.step), "adapter": steps(adapter.step)}
    rows = bench_tools.compare(calls, seconds, n * POOL)
    environments.close()
    return [
        {
            "environment": f"{name}:{game}",
            **row,
            "steps_per_s": round(1e6 / float(row["wall_us"])),
            "bare_share": round(1 / float(row["wall_ratio"]), 3),
        }
        for row in rows
    ]


def parse() -> argparse.Namespace:
    def case(text: str) -> str:
        if text.partition(":")[0] not in BARE:
            raise argparse.ArgumentTypeError(
                f"{text!r}: wanted FAMILY or FAMILY:GAME, with one of {', '.join(BARE)}"
            )
        return text

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "environments",
        nargs="*",
        type=case,
        metavar="FAMILY[:GAME]",
        default=[name for name, package in DEFAULTS.items() if importlib.util.find_spec(package)],
    )
    parser.add_argument("--num_envs", type=int, default=16, help="Environments stepped together.")
    parser.add_argument("--seconds", type=float, default=5.0, help="Of each, about.")
    parser.add_argument("--json", action="store_true", help="Print one line of JSON at the end.")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    rows = [
        row
        for environment in arguments.environments
        for row in measure(environment, arguments.num_envs, arguments.seconds)
    ]
    title = f"{arguments.num_envs} environments stepped together; us are those of one step of one"
    bench_tools.report(arguments, title, rows)


if __name__ == "__main__":
    main()
