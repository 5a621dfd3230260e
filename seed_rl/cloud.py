"""Runs this machine's part of a training on a cluster; the entry point of containers.

    python -m seed_rl.cloud --environment=atari --agent=r2d2 --logdir=gs://bucket/run \
        --env_batch_size=1 --actors_per_worker=20

All machines are given the same flags. What each of them is, it reads from CLUSTER_SPEC, as Vertex
AI sets it, or else from TF_CONFIG:

    {"cluster": {"workerpool0": ["host-a:2222"], "workerpool1": ["host-b:2222", "host-c:2222"]},
     "task": {"type": "workerpool1", "index": 0}}

The one machine of master, chief or workerpool0 is the learner, at the address that is told there
(port 8686 where it has none); those of worker and of workerpool1, workerpool2, ... run actors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from seed_rl import flags
from seed_rl.actor import ActorConfig
from seed_rl.config import LearnerConfig, option
from seed_rl.crew import supervise_actors
from seed_rl.errors import UserError
from seed_rl.launcher import grouped_flags, split_flags
from seed_rl.supervisor import Guard, Program, on_stop_signals, shell_code

DEFAULT_PORT = 8686
_LEARNER_ROLE = re.compile(r"master|chief|workerpool0")
_ACTOR_ROLE = re.compile(r"worker|workerpool[1-9][0-9]*")
_ACCEPTED = (
    "master, chief or workerpool0, which is the learner, worker or workerpool1, workerpool2, ..., "
    "which run actors"
)
_SAID_BY_CLUSTER = ("run_mode", "server_address", "task")
# A learner's machine that is taken away is replaced within minutes.
_RECONNECT_SECS = 3600


@dataclasses.dataclass(frozen=True)
class CloudConfig:
    """Cluster: how environments are shared out. All other flags are the learner's and actors'."""

    actors_per_worker: int = option(1, "Actors on each machine but the learner's.")
    env_batch_size: int = option(
        LearnerConfig.__dataclass_fields__["env_batch_size"].default, "Environments of one actor."
    )
    num_envs: int = option(0, "Environments of all actors together; 0 = as many as they have.")

    def __post_init__(self) -> None:
        for name, least in (("actors_per_worker", 1), ("env_batch_size", 1), ("num_envs", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"--{name} is {getattr(self, name)}, wanted at least {least}")


@dataclasses.dataclass(frozen=True)
class Place:
    """This machine's place in the cluster."""

    is_learner: bool
    index: int  # among the machines that run actors, from all of their pools; 0 for the learner
    num_workers: int  # machines that run actors
    learner_host: str
    learner_port: int

    @property
    def listen_address(self) -> str:
        everywhere = "[::]" if self.learner_host.startswith("[") else "0.0.0.0"
        return f"{everywhere}:{self.learner_port}"

    @property
    def learner_address(self) -> str:
        return f"{self.learner_host}:{self.learner_port}"


def read_place(environment: Mapping[str, str]) -> Place:
    """This machine's place, from the variables CLUSTER_SPEC or TF_CONFIG. Raises UserError."""
    for variable in ("CLUSTER_SPEC", "TF_CONFIG"):
        if environment.get(variable):
            try:
                return _parse(json.loads(environment[variable]))
            except ValueError as error:
                raise UserError(f"{variable}: {error}") from error
    raise UserError(
        "neither CLUSTER_SPEC nor TF_CONFIG is set: nothing says which machine of a cluster this "
        "is; for one machine, type: python -m seed_rl.launcher --help"
    )


def _parse(spec: Any) -> Place:
    """Raises ValueError."""
    pools, task = _member(spec, "cluster"), _member(spec, "task")
    role, index = str(task.get("type")), task.get("index", 0)
    for name in (role, *pools):
        if not (_LEARNER_ROLE.fullmatch(name) or _ACTOR_ROLE.fullmatch(name)):
            raise ValueError(f"saw the role {name!r}, wanted {_ACCEPTED}")
    for name, hosts in pools.items():
        if not (isinstance(hosts, list) and all(isinstance(host, str) for host in hosts)):
            raise ValueError(f"{name} is {hosts!r}, wanted a list of host:port")
    if role not in pools or type(index) is not int or not 0 <= index < len(pools[role]):
        sizes = ", ".join(f"{len(hosts)} of {name}" for name, hosts in pools.items()) or "none"
        raise ValueError(f"the task is {role} {index!r}, but the cluster's machines are: {sizes}")
    learners = [host for name in pools if _LEARNER_ROLE.fullmatch(name) for host in pools[name]]
    if len(learners) != 1:
        raise ValueError(
            f"the cluster has {len(learners)} machines of master, chief or workerpool0, wanted 1"
        )
    match = re.fullmatch(r"(\[[^]]+\]|[^:]+)(?::([0-9]+))?", learners[0])
    if match is None:
        raise ValueError(f"the learner's address is {learners[0]!r}, wanted host:port")
    # workerpool10 comes after workerpool2. The machines of the first pools are numbered first.
    workers = sorted(filter(_ACTOR_ROLE.fullmatch, pools), key=lambda name: (len(name), name))
    machines = [(name, i) for name in workers for i in range(len(pools[name]))]
    if not machines:
        raise ValueError("the cluster has no machine for actors, wanted worker or workerpool1")
    is_learner = role not in workers
    return Place(
        is_learner=is_learner,
        index=0 if is_learner else machines.index((role, index)),
        num_workers=len(machines),
        learner_host=match[1],
        learner_port=int(match[2] or DEFAULT_PORT),
    )


def _member(spec: Any, name: str) -> Mapping[str, Any]:
    value = spec.get(name) if isinstance(spec, dict) else None
    if not isinstance(value, dict):
        raise ValueError(f"wanted a JSON object with cluster and task, saw {name} as {value!r}")
    return value


def learner_command(place: Place, config: CloudConfig, words: Sequence[str]) -> list[str]:
    """The learner's command line. Raises UserError."""
    num_envs = _num_envs(place, config)
    learner_words, _ = split_flags(
        words, {field.name for field in dataclasses.fields(LearnerConfig)}, _actor_names()
    )
    return [
        *(sys.executable, "-m", "seed_rl", "--run_mode=learner"),
        *learner_words,
        f"--env_batch_size={config.env_batch_size}",
        f"--num_envs={num_envs}",
        f"--server_address={place.listen_address}",
    ]


def actor_programs(
    place: Place, config: CloudConfig, words: Sequence[str], log_folder: pathlib.Path
) -> list[Program]:
    """This machine's actors. Raises UserError."""
    num_envs = _num_envs(place, config)
    _, actor_words = split_flags(words, set(), _actor_names())
    first = place.index * config.actors_per_worker
    return [
        Program(
            name=f"actor {task}",
            command=[
                *(sys.executable, "-m", "seed_rl", "--run_mode=actor"),
                f"--reconnect_secs={_RECONNECT_SECS}",
                *actor_words,
                f"--env_batch_size={config.env_batch_size}",
                f"--num_envs={num_envs}",
                f"--task={task}",
                f"--server_address={place.learner_address}",
            ],
            log=log_folder / f"actor-{task}.log",
            prefix=f"[actor {task}] ",
        )
        for task in range(first, first + config.actors_per_worker)
    ]


def _actor_names() -> set[str]:
    return {field.name for field in dataclasses.fields(ActorConfig)}


def _num_envs(place: Place, config: CloudConfig) -> int:
    num_envs = place.num_workers * config.actors_per_worker * config.env_batch_size
    if config.num_envs not in (0, num_envs):
        raise UserError(
            f"--num_envs={config.num_envs}, but {place.num_workers} machines x "
            f"{config.actors_per_worker} actors x {config.env_batch_size} environments = "
            f"{num_envs}: leave the flag out"
        )
    return num_envs


def run_learner(command: Sequence[str]) -> int:
    """Runs it until it ends; passes on signals to stop.

    Returns its exit code, but 128 + N where it ended with 0 after signal N: else whoever replaces
    machines that are taken away would think that training is over.
    """
    signals: list[int] = []
    processes: list[subprocess.Popen[bytes]] = []

    def stop(signum: int, _frame: FrameType | None) -> None:
        signals.append(signum)
        for process in processes:
            process.send_signal(signum)

    with on_stop_signals(stop), contextlib.closing(Guard()) as guard:
        # In a session of its own, or Ctrl-C would reach it twice.
        processes.append(subprocess.Popen(command, start_new_session=True))
        guard.begin(processes[0].pid)
        if signals:
            processes[0].send_signal(signals[0])
        code = processes[0].wait()
        guard.end(processes[0].pid)
    return shell_code(-signals[0] if signals and code == 0 else code)


def _run(argv: Sequence[str]) -> int:
    for name, _ in grouped_flags(argv):
        if name in _SAID_BY_CLUSTER:
            raise UserError(f"leave out --{name}: the cluster says it")
    place = read_place(os.environ)
    (config,) = flags.parse(argv, CloudConfig, known_only=True)
    own = {field.name for field in dataclasses.fields(CloudConfig)}
    words = [word for name, group in grouped_flags(argv) if name not in own for word in group]
    if place.is_learner:
        return run_learner(learner_command(place, config, words))
    folder = tempfile.mkdtemp(prefix="seed_rl-")
    return supervise_actors(
        actor_programs(place, config, words, pathlib.Path(folder)),
        terminal=sys.stdout,
        scratch_folder=folder,
    )


def main(argv: Sequence[str]) -> int:
    """Returns the exit code: 2 where the user must mend something."""
    if any(word in ("-h", "-help", "--help") for word in argv):
        print(f"{__doc__}{flags.usage(CloudConfig)}")
        return 0
    try:
        return _run(argv)
    except UserError as error:
        print(f"seed_rl.cloud: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
