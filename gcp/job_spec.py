"""The job of a training on Vertex AI, and what it costs. Pure functions, standard library only."""

from __future__ import annotations

import csv
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any


class UserError(Exception):
    """What is wrong, what was seen and wanted, and what to type next."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One learner and the machines of its actors."""

    learner_image: str
    actor_image: str
    learner_machine: str
    accelerator: str  # as Vertex AI calls it, such as NVIDIA_L4; empty: none
    actor_machine: str
    workers: int  # machines that run actors
    actors_per_worker: int
    logdir: str
    spot: bool
    flags: Sequence[str]  # of the learner


def spec(job: Job) -> dict[str, Any]:
    """The CustomJobSpec: pool 0 is the learner, pool 1 runs the actors.

    Every machine gets the same arguments and finds its part in CLUSTER_SPEC.
    """
    arguments = [
        *job.flags,
        f"--actors_per_worker={job.actors_per_worker}",
        f"--logdir={job.logdir}",
    ]
    learner: dict[str, Any] = {"machineType": job.learner_machine}
    if job.accelerator:
        learner |= {"acceleratorType": job.accelerator, "acceleratorCount": 1}
    return {
        "workerPoolSpecs": [
            _pool(learner, 1, job.learner_image, arguments),
            _pool({"machineType": job.actor_machine}, job.workers, job.actor_image, arguments),
        ],
        # A machine that is replaced joins the others again: nothing else has to be restarted.
        "scheduling": {
            "strategy": "SPOT" if job.spot else "STANDARD",
            "restartJobOnWorkerRestart": False,
        },
    }


def _pool(
    machine: Mapping[str, Any], replicas: int, image: str, arguments: Sequence[str]
) -> dict[str, Any]:
    return {
        "machineSpec": dict(machine),
        "replicaCount": replicas,
        "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100},
        "containerSpec": {
            "imageUri": image,
            "command": ["python", "-m", "seed_rl.cloud"],
            "args": list(arguments),
        },
    }


def read_prices(path: pathlib.Path) -> dict[str, tuple[float, float]]:
    """USD per hour, on demand and as spot, by the name of a machine type or an accelerator."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        try:
            return {row["name"]: (float(row["on_demand"]), float(row["spot"])) for row in rows}
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: wanted the columns name,on_demand,spot: {error!r}") from error


def usd_per_hour(job: Job, prices: Mapping[str, tuple[float, float]]) -> float | None:
    """None where the table lacks a price."""
    counts = {job.learner_machine: 1, **({job.accelerator: 1} if job.accelerator else {})}
    counts[job.actor_machine] = counts.get(job.actor_machine, 0) + job.workers
    if not counts.keys() <= prices.keys():
        return None
    return sum(count * prices[name][job.spot] for name, count in counts.items())


def usd_per_billion_frames(hourly: float, frames_per_second: float) -> float:
    return hourly * 1e9 / (frames_per_second * 3600)
