"""Prepares a project for training: APIs, a bucket, a repository of images. See setup.sh."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gcloud import REPOSITORY, Shell, add_flags, find_place, run_main

_APIS = (
    "aiplatform.googleapis.com",
    "artifactregistry.googleapis.com",
    "cloudbuild.googleapis.com",
    "storage.googleapis.com",
)


def prepare(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="gcp/setup.sh", description=__doc__, allow_abbrev=False)
    add_flags(parser)
    arguments = parser.parse_args(argv)
    place = find_place(arguments.project, arguments.region, arguments.bucket)
    shell = Shell(arguments.dry_run)
    project = f"--project={place.project}"
    shell.run("gcloud", "services", "enable", *_APIS, project)
    bucket = "/".join(place.bucket.split("/")[:3])
    if not shell.succeeds("gcloud", "storage", "buckets", "describe", bucket, project):
        shell.run(
            *("gcloud", "storage", "buckets", "create", bucket, project),
            *(f"--location={place.region}", "--uniform-bucket-level-access"),
        )
    repository = ("gcloud", "artifacts", "repositories")
    location = f"--location={place.region}"
    if not shell.succeeds(*repository, "describe", REPOSITORY, location, project):
        shell.run(
            *repository, "create", REPOSITORY, "--repository-format=docker", location, project
        )
    shell.run("gcloud", "auth", "configure-docker", place.registry, "--quiet")
    if not arguments.dry_run:
        print(f"project {place.project}, region {place.region}, bucket {bucket}: ready")


if __name__ == "__main__":
    sys.exit(run_main("gcp/setup.sh", lambda: prepare(sys.argv[1:])))
