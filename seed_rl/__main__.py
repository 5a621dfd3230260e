"""Runs a learner or an actor: `python -m seed_rl --run_mode=learner --agent=vtrace ...`.

`python -m seed_rl version` tells what is installed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import sys
import threading
from typing import Any

from seed_rl import devices, flags
from seed_rl.config import LearnerConfig, PresetConfig, option
from seed_rl.errors import UserError, as_user_error

_logger = logging.getLogger("seed_rl")


@dataclasses.dataclass(frozen=True)
class Selection(PresetConfig):
    """What to run; the environment and the agent add flags of their own."""

    run_mode: str = option("learner", "Which process this is.", choices=("learner", "actor"))
    environment: str = option(
        "atari", "atari, catch, dmlab, football, gym, mujoco, recall, or module:factory."
    )
    agent: str = option("vtrace", "vtrace or r2d2.")


@dataclasses.dataclass(frozen=True)
class ActorMode:
    """An actor learns all but these from its learner."""

    run_mode: str = option("actor", "Which process this is.", choices=("learner", "actor"))


def _run_learner(selection: Selection, argv: list[str]) -> None:
    # Until there is something to save. A handler in Python would wait for the seconds that
    # TensorFlow's start spends in C++.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_DFL)
    from seed_rl.agents import registry as agents
    from seed_rl.envs import registry as environments
    from seed_rl.grpc import addresses, core

    with as_user_error(ValueError, ImportError):
        environment_class = environments.load(selection.environment).Config
        agent_class = agents.load(selection.agent).Config
        defaults = agents.preset(selection.agent, selection.preset)
    _, config, environment_config, agent_config = flags.parse(
        argv, Selection, LearnerConfig, environment_class, agent_class, defaults=defaults
    )
    if not config.logdir:
        raise UserError("--logdir is empty, wanted the folder to keep this run in")
    with as_user_error(ValueError):
        addresses.parse(config.server_address)
        core.choose(config.core)
    devices.start_tensorflow(config.intra_op_threads, config.inter_op_threads)
    from seed_rl.experiment import Experiment
    from seed_rl.learner import Learner

    experiment = Experiment(
        selection.environment, environment_config, selection.agent, agent_config, config.seed
    )
    with as_user_error(OSError):  # an address in use, a folder that cannot be written
        learner = Learner(experiment, config)
    stop = _stop_on_signals()
    _logger.info("serving %d environments at %s", config.num_envs, learner.address)
    learner.run(stop)


def _run_actor(argv: list[str]) -> None:
    from seed_rl.actor import ActorConfig, run_actor

    _, config = flags.parse(argv, ActorMode, ActorConfig)
    with contextlib.suppress(KeyboardInterrupt):
        run_actor(config)


def _help(selection: Selection) -> str:
    if selection.run_mode == "actor":
        from seed_rl.actor import ActorConfig

        return flags.usage(ActorMode, ActorConfig)
    from seed_rl.agents import registry as agents
    from seed_rl.envs import registry as environments

    with as_user_error(ValueError, ImportError):
        environment_class = environments.load(selection.environment).Config
        agent_class = agents.load(selection.agent).Config
        defaults = agents.preset(selection.agent, selection.preset)
    return flags.usage(Selection, LearnerConfig, environment_class, agent_class, defaults=defaults)


def _stop_on_signals() -> threading.Event:
    """An event that SIGINT and SIGTERM set; the second of them ends the process at once."""
    stop = threading.Event()

    def handle(signum: int, frame: Any) -> None:
        del frame
        signal.signal(signum, signal.SIG_DFL)
        stop.set()
        _logger.info("%s: saving and stopping", signal.Signals(signum).name)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return stop


def main(argv: list[str]) -> int:
    """Runs what the flags ask for. Returns the exit code: 2 where the user must mend something."""
    logging.basicConfig(
        level=logging.INFO, format="%(levelname).1s %(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    logging.getLogger("absl").setLevel(logging.WARNING)  # where TensorFlow tells of its internals
    if argv in (["version"], ["--version"]):
        from seed_rl import version

        print(version.text())
        return 0
    asks_help = [word for word in argv if word.lstrip("-") in ("help", "helpfull", "h")]
    try:
        (selection,) = flags.parse(
            [word for word in argv if word not in asks_help], Selection, known_only=True
        )
        if asks_help:
            print(_help(selection))
        elif selection.run_mode == "actor":
            _run_actor(argv)
        else:
            _run_learner(selection, argv)
    except UserError as error:
        print(f"seed_rl: {error}", file=sys.stderr)
        return 2
    return 0


def console() -> int:
    """The command `seed_rl`, which is `python -m seed_rl`."""
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(console())
