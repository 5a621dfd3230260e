"""Which project, region and bucket, and the commands that act on them."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

from job_spec import UserError

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = "seed_rl"  # of Artifact Registry


@dataclasses.dataclass(frozen=True)
class Place:
    project: str
    region: str
    bucket: str  # gs://name

    @property
    def registry(self) -> str:
        return f"{self.region}-docker.pkg.dev"

    def image(self, target: str, tag: str) -> str:
        # A project of a domain is called example.com:project.
        project = self.project.replace(":", "/")
        return f"{self.registry}/{project}/{REPOSITORY}/{target}:{tag}"


class CommandError(Exception):
    """A command failed."""

    def __init__(self, command: Sequence[str], code: int) -> None:
        super().__init__(f"this failed with code {code}: {shlex.join(command)}")
        self.code = code


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--project", help="default: that of gcloud config")
    parser.add_argument("--region", help="default: ai/region or compute/region of gcloud config")
    parser.add_argument("--bucket", help="gs://name; default: gs://PROJECT-seed-rl")
    parser.add_argument("--dry_run", action="store_true", help="show everything, do nothing")


def find_place(project: str | None, region: str | None, bucket: str | None) -> Place:
    """What was not given comes from the user's configuration of gcloud. Raises UserError."""
    project = project or os.environ.get("GOOGLE_CLOUD_PROJECT") or _configured("project")
    if not project:
        raise UserError(
            "no project is set: type --project=PROJECT or: gcloud config set project PROJECT"
        )
    region = region or _configured("ai/region") or _configured("compute/region")
    if not region:
        raise UserError(
            "no region is set: type --region=REGION or: gcloud config set ai/region REGION"
        )
    bucket = bucket or f"gs://{project.replace(':', '-').replace('.', '-')}-seed-rl"
    if not bucket.startswith("gs://") or not bucket[5:].strip("/"):
        raise UserError(f"--bucket={bucket}: wanted gs://NAME")
    return Place(project, region, bucket.rstrip("/"))


def _configured(name: str) -> str:
    """A property of gcloud's configuration; empty where it is not set."""
    if shutil.which("gcloud") is None:
        return ""
    result = subprocess.run(
        ["gcloud", "config", "get-value", name],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    value = result.stdout.strip()
    return "" if result.returncode or value == "(unset)" else value


class Shell:
    """Shows each command and, unless it is a dry run, runs it."""

    def __init__(self, is_dry: bool) -> None:
        self.is_dry = is_dry

    def run(self, *command: str) -> None:
        """Raises CommandError."""
        self._show(command)
        if not self.is_dry:
            code = self._call(command).returncode
            if code:
                raise CommandError(command, code)

    def output(self, *command: str, dry: str) -> str:
        """What the command prints; `dry` in a dry run. Raises CommandError."""
        self._show(command)
        if self.is_dry:
            return dry
        result = self._call(command, stdout=subprocess.PIPE)
        if result.returncode:
            raise CommandError(command, result.returncode)
        return str(result.stdout).strip()

    def succeeds(self, *command: str) -> bool:
        """Whether it does; in a dry run, that it does not."""
        self._show(command)
        if self.is_dry:
            return False
        quiet = subprocess.DEVNULL
        return self._call(command, stdout=quiet, stderr=quiet).returncode == 0

    def require(self, program: str) -> None:
        """Raises UserError where it is not installed, before anything else takes its time."""
        if not self.is_dry and shutil.which(program) is None:
            raise _missing(program)

    @staticmethod
    def _call(
        command: Sequence[str], stdout: int | None = None, stderr: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True, cwd=ROOT
            )
        except FileNotFoundError as error:
            raise _missing(command[0]) from error

    @staticmethod
    def _show(command: Sequence[str]) -> None:
        print(f"+ {shlex.join(command)}", file=sys.stderr, flush=True)


def _missing(program: str) -> UserError:
    return UserError(f"found no {program}: install it, see docs/google_cloud.md")


def run_main(name: str, body: Callable[[], None]) -> int:
    """Calls `body`. Returns the exit code: 2 where the user must mend something."""
    try:
        body()
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except CommandError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.code if error.code > 0 else 128 - error.code
    except KeyboardInterrupt:
        return 130
    return 0
