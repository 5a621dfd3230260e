"""Trains on Vertex AI: builds the images, submits the job and follows its logs.

Called by the scripts train_*.sh, as `train.py SCRIPT TARGET [flags]`. Flags that are not listed
here are the learner's, such as --game=Breakout; the later one of two counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

import job_spec
from gcloud import Place, Shell, add_flags, find_place, run_main
from job_spec import Job, UserError

_PRICES = pathlib.Path(__file__).with_name("prices.csv")
# What the cluster and the job say already.
_REFUSED = {
    "logdir": "--name and --bucket choose it",
    "num_envs": "it is workers x actors_per_worker x env_batch_size",
    "run_mode": "the machine's place in the cluster says it",
    "server_address": "the cluster says it",
    "task": "the cluster says it",
}


def _positive(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"wanted a whole number of at least 1, saw {text!r}")
    return int(text)


def parse(script: str, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The script's flags and the learner's. Raises UserError."""
    parser = argparse.ArgumentParser(
        prog=script, description=__doc__.split("\n")[0], allow_abbrev=False
    )
    add_flags(parser)
    parser.add_argument("--name", help="of the run; the same name goes on where it stopped")
    parser.add_argument("--workers", type=_positive, help="machines that run actors")
    parser.add_argument("--actors_per_worker", type=_positive, help="actors on each of them")
    parser.add_argument("--learner_machine", help="machine type of the learner")
    parser.add_argument("--accelerator", help="the learner's, such as NVIDIA_L4, or none")
    parser.add_argument("--actor_machine", help="machine type for actors")
    parser.add_argument("--spot", action="store_true", help="spot machines, for all of the job")
    parser.add_argument("--cloud_build", action="store_true", help="build images on Cloud Build")
    parser.add_argument(
        "--frames_per_second", type=float, help="assumed for the estimate of the cost"
    )
    arguments, flags = parser.parse_known_args(argv)
    for flag in flags:
        match = re.fullmatch(r"--?([A-Za-z0-9_]+)(=.*)?", flag, re.DOTALL)
        if match is None:
            raise UserError(f"saw {flag!r}, wanted flags as in --game=Breakout")
        if match[1] in _REFUSED:
            raise UserError(f"leave out --{match[1]}: {_REFUSED[match[1]]}")
    if not arguments.frames_per_second > 0:
        raise UserError(f"--frames_per_second={arguments.frames_per_second}: wanted more than 0")
    if arguments.name and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", arguments.name):
        raise UserError(f"--name={arguments.name}: wanted letters, digits, '_', '.' and '-'")
    return arguments, flags


def _build(
    shell: Shell, place: Place, target: str, device: str, image: str, on_cloud: bool
) -> None:
    build = ["docker/build.sh", target, device, f"--tag={image}"]
    if not on_cloud:
        shell.run(*build, "--push")
        return
    steps = {
        "steps": [{"name": "gcr.io/cloud-builders/docker", "entrypoint": "bash", "args": build}],
        "images": [image],
        "timeout": "7200s",
        "options": {"machineType": "E2_HIGHCPU_8"},
    }
    with _json_file(steps, shell.is_dry) as path:
        shell.run(
            *("gcloud", "builds", "submit", ".", f"--config={path}"),
            *(f"--project={place.project}", f"--region={place.region}"),
        )


@contextlib.contextmanager
def _json_file(value: object, shows: bool) -> Iterator[str]:
    """The path of a temporary file, whose text is printed if it `shows`."""
    text = json.dumps(value, indent=2)
    if shows:
        print(text, flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        yield file.name


def _tell_cost(job: Job, frames_per_second: float) -> None:
    hourly = job_spec.usd_per_hour(job, job_spec.read_prices(_PRICES))
    if hourly is None:
        print(f"no estimate of the cost: {_PRICES} lacks the price of one of the machines")
        return
    kind = "spot" if job.spot else "on demand"
    billion = job_spec.usd_per_billion_frames(hourly, frames_per_second)
    print(
        f"estimated cost ({kind}, {_PRICES.name}): {hourly:.2f} USD per hour, {billion:,.0f} USD "
        f"per 1e9 frames at an assumed {frames_per_second:,.0f} frames/s"
    )


def train(script: str, target: str, argv: Sequence[str]) -> None:
    """Raises UserError, CommandError."""
    arguments, flags = parse(script, argv)
    place = find_place(arguments.project, arguments.region, arguments.bucket)
    now = time.strftime("%Y%m%d-%H%M%S")
    name = arguments.name or f"{pathlib.Path(script).stem.removeprefix('train_')}-{now}"
    logdir = f"{place.bucket}/{name}"
    accelerator = "" if arguments.accelerator == "none" else arguments.accelerator
    devices = ["gpu", "cpu"] if accelerator else ["cpu"]
    images = {device: place.image(target, f"{device}-{now}") for device in devices}
    job = Job(
        learner_image=images[devices[0]],
        actor_image=images["cpu"],
        learner_machine=arguments.learner_machine,
        accelerator=accelerator,
        actor_machine=arguments.actor_machine,
        workers=arguments.workers,
        actors_per_worker=arguments.actors_per_worker,
        logdir=logdir,
        spot=arguments.spot,
        flags=flags,
    )
    _tell_cost(job, arguments.frames_per_second)
    shell = Shell(arguments.dry_run)
    shell.require("gcloud")
    for device, image in images.items():
        _build(shell, place, target, device, image, arguments.cloud_build)
    where = (f"--project={place.project}", f"--region={place.region}")
    jobs = ("gcloud", "ai", "custom-jobs")
    with _json_file(job_spec.spec(job), shell.is_dry) as path:
        job_name = shell.output(
            *(*jobs, "create", f"--display-name={name}", f"--config={path}", *where),
            "--format=value(name)",
            dry="JOB",
        )
    if not job_name:
        raise UserError("gcloud ai custom-jobs create printed no name of a job")
    print(
        f"TensorBoard: tensorboard --logdir={logdir}\n"
        f"checkpoints: {logdir}/checkpoints\n"
        f"to stop: gcloud ai custom-jobs cancel {job_name} {' '.join(where)}",
        flush=True,
    )
    shell.run(*jobs, "stream-logs", job_name, *where)


if __name__ == "__main__":
    _script, _target, *_argv = sys.argv[1:]
    sys.exit(run_main(_script, lambda: train(_script, _target, _argv)))
