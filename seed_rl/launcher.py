"""Starts a learner and its actors on this machine, and keeps them running.

    python -m seed_rl.launcher GAME AGENT NUM_ACTORS [ENVS_PER_ACTOR] [--flags]

is what run_local.sh runs in its virtual environment. Only the standard library is imported at
first, so that --help works before anything is installed.
"""

from __future__ import annotations

import dataclasses
import fcntl
import io
import os
import pathlib
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from seed_rl.errors import UserError, as_user_error
from seed_rl.supervisor import Program, on_stop_signals, supervise

USAGE = "usage: run_local.sh GAME AGENT NUM_ACTORS [ENVS_PER_ACTOR] [--flags]"

HELP = f"""{USAGE}

Trains AGENT on GAME: starts one learner and NUM_ACTORS actors as processes of this machine,
restarts actors that die, and ends all of them together.

  GAME             atari, catch, gym, ..., or module:factory for an environment of your own;
                   which of its games is a flag: --game=breakout
  AGENT            vtrace or r2d2
  NUM_ACTORS       processes that step environments; as many as there are cores is a good start
  ENVS_PER_ACTOR   environments that each of them steps together (default 16)

  --logdir         folder of the run; the same command with the same --logdir goes on where it
                   stopped (default: a new folder in ./logs)
  --server_address where actors find the learner; 0.0.0.0:8686 also lets in actors of other
                   machines (default: a unix socket in a temporary folder)
  --docker         of run_local.sh only: run in a container; --docker=gpu with this machine's GPUs

All other flags go to the learner or the actors. They are listed by
  python -m seed_rl --run_mode=learner --environment=GAME --agent=AGENT --help
  python -m seed_rl --run_mode=actor --help

Every process writes to a file in LOGDIR/logs, and all of it is shown here, actors' lines after
"[actor N]". Ctrl-C or SIGTERM stops everything within 5 s, after a checkpoint.

Exit code: 0 when training has ended or was stopped by Ctrl-C, SIGTERM or SIGHUP; 2 for a wrong
command line; otherwise that of the learner, or of the actor that failed again and again
(128 + N where signal N ended it, 1 where it ended with 0 before training was over).
"""

DEFAULT_ENVS_PER_ACTOR = 16
# What the words of the command line say already.
_SAID_BY_WORDS = {
    "run_mode": "the launcher starts learner and actors",
    "environment": "it is the first word, GAME",
    "agent": "it is the second word, AGENT",
    "task": "the launcher numbers the actors",
}
# A unix socket's path has 107 bytes at most: longer folders than this leave no room for a name.
_LONGEST_FOLDER = 80
# What a learner locks in its log dir. As in experiment.py, which imports TensorFlow.
LOCK_FILE = ".lock"


@dataclasses.dataclass(frozen=True)
class Words:
    """The command line, taken apart."""

    game: str
    agent: str
    num_actors: int
    envs_per_actor: int
    flags: tuple[str, ...]  # as they were typed


def _count(name: str, word: str) -> int:
    if not re.fullmatch(r"[0-9]+", word) or int(word) < 1:
        raise UserError(f"wanted {name} as a whole number of at least 1, saw {word!r}")
    return int(word)


def parse_words(argv: Sequence[str]) -> Words:
    words = list(argv)
    first_flag = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    words, flags = words[:first_flag], words[first_flag:]
    if not 3 <= len(words) <= 4:
        raise UserError(
            f"wanted GAME AGENT NUM_ACTORS [ENVS_PER_ACTOR] before the flags, saw "
            f"{shlex.join(words) or 'nothing'}"
        )
    for name, _ in grouped_flags(flags):
        if name in _SAID_BY_WORDS:
            raise UserError(f"leave out --{name}: {_SAID_BY_WORDS[name]}")
    return Words(
        game=words[0],
        agent=words[1],
        num_actors=_count("NUM_ACTORS", words[2]),
        envs_per_actor=(
            _count("ENVS_PER_ACTOR", words[3]) if len(words) == 4 else DEFAULT_ENVS_PER_ACTOR
        ),
        flags=tuple(flags),
    )


def grouped_flags(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag's name and its words: `--seed=1` is one, `--seed 1` two."""
    group: list[str] = []
    for word in [*words, "--"]:
        if not re.match(r"-(?![0-9.])", word):  # the last flag's value, such as -1
            group.append(word)
            continue
        if group:
            yield group[0].lstrip("-").partition("=")[0], group
        group = [word]


def split_flags(
    words: Sequence[str], learner_names: set[str], actor_names: set[str]
) -> tuple[list[str], list[str]]:
    """The words for the learner and those for the actors; some flags are both's.

    Flags that nobody knows go to the learner, which refuses them.
    """
    learner_words, actor_words = [], []
    for name, group in grouped_flags(words):
        positive = name[2:] if name.startswith("no") and name[2:] in actor_names else name
        if positive in actor_names:
            actor_words += group
        if positive not in actor_names or positive in learner_names:
            learner_words += group
    return learner_words, actor_words


def connect_address(server_address: str) -> str:
    """Where an actor of this machine finds a learner that serves `server_address`."""
    host, colon, port = server_address.rpartition(":")
    if server_address.startswith("unix:"):
        return server_address
    if colon and port == "0":
        raise UserError(
            f"--server_address={server_address}: actors must know the port; name one, such as 8686"
        )
    return {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host) + colon + port


def make_logdir(*names: str) -> pathlib.Path:
    """A new folder in ./logs whose name tells what runs, and since when."""
    parts = [re.sub(r"[^A-Za-z0-9_.]+", "_", name) for name in names if name]
    stem = "-".join([*parts, time.strftime("%Y%m%d-%H%M%S")])
    number = 1
    while True:
        logdir = pathlib.Path("logs", stem if number == 1 else f"{stem}-{number}")
        try:
            logdir.mkdir(parents=True)
            return logdir
        except FileExistsError:
            number += 1


def make_scratch_folder() -> str:
    """A temporary folder whose path is short enough for a unix socket in it."""
    folder = tempfile.gettempdir()
    parent = folder if len(folder) <= _LONGEST_FOLDER else "/tmp"
    return tempfile.mkdtemp(prefix="seed_rl-", dir=parent)


@dataclasses.dataclass(frozen=True)
class Plan:
    learner: Program
    actors: tuple[Program, ...]
    logdir: pathlib.Path


def make_plan(words: Words, scratch_folder: str) -> Plan:
    """What to run. Makes the log dir. Raises UserError."""
    # Here and not above, since these need what is installed with the package.
    from seed_rl import flags
    from seed_rl.actor import ActorConfig
    from seed_rl.agents import registry as agents
    from seed_rl.config import LearnerConfig, PresetConfig
    from seed_rl.envs import registry as environments
    from seed_rl.grpc import addresses, core

    def names(config_class: type) -> set[str]:
        return {field.name for field in dataclasses.fields(config_class)}

    learner_flags, actor_flags = split_flags(words.flags, names(LearnerConfig), names(ActorConfig))
    learner_flags = [
        f"--server_address=unix:{scratch_folder}/learner",
        f"--num_envs={words.num_actors * words.envs_per_actor}",
        f"--env_batch_size={words.envs_per_actor}",
        *learner_flags,
    ]
    # The learner would refuse the same, seconds later and among its actors' complaints.
    with as_user_error(ValueError, ImportError):
        environment_class = environments.load(words.game).Config
        agent_class = agents.load(words.agent).Config
        (preset,) = flags.parse(learner_flags, PresetConfig, known_only=True)
        defaults = agents.preset(words.agent, preset.preset)
    config, environment_config, *_ = flags.parse(
        learner_flags,
        LearnerConfig,
        environment_class,
        agent_class,
        PresetConfig,
        defaults=defaults,
    )
    for name, wanted, made_of in (
        (
            "num_envs",
            words.num_actors * words.envs_per_actor,
            f"{words.num_actors} actors x {words.envs_per_actor} environments",
        ),
        ("env_batch_size", words.envs_per_actor, "ENVS_PER_ACTOR"),
    ):
        if getattr(config, name) != wanted:
            raise UserError(
                f"--{name}={getattr(config, name)}, but {made_of} = {wanted}: leave the flag out"
            )

    if "://" in config.logdir:
        raise UserError(
            f"--logdir={config.logdir}: the launcher keeps its log files there, which takes a "
            "folder of this machine; python -m seed_rl --run_mode=learner can write elsewhere"
        )
    actor_address = connect_address(config.server_address)
    with as_user_error(ValueError):
        addresses.parse(actor_address)
        core.choose(config.core)
    _require_fit(words, environment_config)
    game = getattr(environment_config, "game", "")
    logdir = (
        pathlib.Path(config.logdir) if config.logdir else make_logdir(words.game, game, words.agent)
    )
    log_folder = logdir / "logs"
    log_folder.mkdir(parents=True, exist_ok=True)
    learner_log = log_folder / "learner.log"
    learner_log.open("a").close()  # or a folder that can't be written would show only later
    python = [sys.executable, "-m", "seed_rl"]
    learner = Program(
        name="learner",
        command=(
            *python,
            "--run_mode=learner",
            f"--environment={words.game}",
            f"--agent={words.agent}",
            *learner_flags,
            f"--logdir={logdir}",
        ),
        log=learner_log,
    )
    actors = []
    for task in range(words.num_actors):
        first = task * words.envs_per_actor
        last = first + words.envs_per_actor - 1
        actors.append(
            Program(
                name=f"actor {task}",
                command=(
                    *python,
                    "--run_mode=actor",
                    f"--task={task}",
                    *actor_flags,
                    f"--server_address={actor_address}",
                ),
                log=log_folder / f"actor-{task}.log",
                prefix=f"[actor {task}] ",
                duty=f"environments {first}-{last}" if last > first else f"environment {first}",
            )
        )
    return Plan(learner, tuple(actors), logdir)


def _require_fit(words: Words, environment_config: Any) -> None:
    """Raises UserError where the agent can't learn in these environments."""
    from seed_rl.agents import registry as agents
    from seed_rl.envs import registry as environments

    require_fit = getattr(agents.load(words.agent), "require_fit", None)
    if require_fit is not None:  # others need not wait for an environment to be made
        with as_user_error(ValueError, ImportError):
            require_fit(environments.load(words.game).specs(environment_config))


def is_in_use(logdir: pathlib.Path) -> bool:
    """Whether a learner runs there; its launcher writes to the same log files as ours would."""
    try:
        with open(logdir / LOCK_FILE, "rb") as lock_file:
            fcntl.flock(lock_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def tensorboard_command() -> str:
    """The one installed beside this Python, since its folder need not be in PATH.

    docker/run.sh says by SEED_RL_TENSORBOARD how it is started from outside.
    """
    if "SEED_RL_TENSORBOARD" in os.environ:
        return os.environ["SEED_RL_TENSORBOARD"]
    beside = pathlib.Path(sys.executable).with_name("tensorboard")
    if not beside.exists():
        return "tensorboard"
    relative = os.path.relpath(beside)
    is_shorter = "/" in relative and len(relative) < len(str(beside))
    return shlex.quote(relative if is_shorter else str(beside))


def _launch(argv: Sequence[str], scratch_folder: str) -> int:
    try:
        words = parse_words(argv)
        plan = make_plan(words, scratch_folder)
        is_refused = is_in_use(plan.logdir)
    except (UserError, OSError) as error:
        print(f"{error}\n{USAGE}", file=sys.stderr)
        return 2
    shown_logdir = shlex.quote(str(plan.logdir))
    if is_refused:
        print(f"another learner runs in {shown_logdir}; choose another --logdir", file=sys.stderr)
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What the terminal can't show must not end the training.
        sys.stdout.reconfigure(errors="backslashreplace")
    print(
        f"[launcher] log dir: {shown_logdir}\n"
        f"[launcher] to watch: {tensorboard_command()} --logdir {shown_logdir}",
        flush=True,
    )
    has_logdir = any(name == "logdir" for name, _ in grouped_flags(words.flags))
    return supervise(
        plan.learner,
        plan.actors,
        terminal=sys.stdout,
        scratch_folder=scratch_folder,
        after_stop="stopped; to go on, type the same command"
        + ("" if has_logdir else f" with --logdir={shown_logdir}"),
    )


def main(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help", "-help") for word in argv):
        print(HELP, end="")
        return 0
    scratch_folder = make_scratch_folder()

    def end(_signum: int, _frame: FrameType | None) -> None:
        with suppress(OSError):
            os.rmdir(scratch_folder)
        os._exit(0)  # an exception would come out of some import, or be caught there

    # Until `supervise` has its own: no process has been started, and nothing is lost.
    with on_stop_signals(end):
        try:
            return _launch(argv, scratch_folder)
        finally:
            shutil.rmtree(scratch_folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
