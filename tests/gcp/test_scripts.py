"""The scripts of gcp/, over stubs of gcloud and docker that record how they are called."""

import importlib
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

from seed_rl import flags
from seed_rl.agents import registry as agents
from seed_rl.config import LearnerConfig, PresetConfig

ROOT = pathlib.Path(__file__).parent.parent.parent
SCRIPTS = sorted(path.name for path in (ROOT / "gcp").glob("train_*.sh"))
# Records its words; keeps the file of --config; fails where it is told to.
STUB = """#!/bin/sh
echo "$(basename "$0") $*" >>"$STUBS/calls"
for word; do
    case $word in --config=*) cp "${word#--config=}" "$STUBS/$1.json" ;; esac
done
case "$(basename "$0") $*" in
    *"${FAILS:-nothing fails}"*) echo "stub: no" >&2; exit 7 ;;
    *"config get-value project"*) echo "${PROJECT-}" ;;
    *"config get-value ai/region"*) echo "${REGION-}" ;;
    *"custom-jobs create"*) echo projects/1/locations/r/customJobs/42 ;;
    *" describe "*) exit "${DESCRIBE:-0}" ;;
esac
"""


class Cloud:
    def __init__(self, folder: pathlib.Path) -> None:
        """A checkout whose docker/build.sh is a stub, and a PATH with stubs."""
        self.folder = folder
        self._checkout = folder / "checkout"
        shutil.copytree(
            ROOT / "gcp", self._checkout / "gcp", ignore=shutil.ignore_patterns("__pycache__")
        )
        (folder / "bin").mkdir()
        (self._checkout / "docker").mkdir()
        for path in (
            folder / "bin/gcloud",
            folder / "bin/gsutil",
            folder / "bin/docker",
            self._checkout / "docker/build.sh",
        ):
            path.write_text(STUB)
            path.chmod(0o755)

    def bring(self, *names: str) -> None:
        """Real files of the checkout, in place of stubs."""
        for name in names:
            (self._checkout / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, self._checkout / name)

    def run(self, script: str, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._checkout / "gcp" / script, *argv],
            env={
                "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
                "STUBS": str(self.folder),
                "HOME": str(self.folder),
                "PYTHONDONTWRITEBYTECODE": "1",
                **variables,
            },
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def calls(self) -> list[str]:
        """What was called, but for questions about the user's configuration and Docker."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        asks = ("config get-value", "docker version")
        return [line for line in lines if not any(words in line for words in asks)]

    def json(self, name: str) -> Any:
        return json.loads((self.folder / f"{name}.json").read_text())


@pytest.fixture
def google(tmp_path: pathlib.Path) -> Cloud:
    return Cloud(tmp_path)


HERE = {"PROJECT": "my-project", "REGION": "europe-west4"}
WHERE = "--project=my-project --region=europe-west4"
IMAGE = "europe-west4-docker.pkg.dev/my-project/seed_rl/atari"


def test_the_whole_flow(google: Cloud) -> None:
    """Case 19: project, region and bucket are the user's."""
    result = google.run("train_atari.sh", "--name=my-run", "--game=Breakout", "--spot", **HERE)
    assert result.returncode == 0, result.stderr
    gpu, cpu, create, logs = google.calls()
    assert gpu.startswith(f"build.sh atari gpu --tag={IMAGE}:gpu-")
    assert cpu.startswith(f"build.sh atari cpu --tag={IMAGE}:cpu-")
    assert gpu.endswith(" --push")
    assert cpu.endswith(" --push")
    assert create.startswith("gcloud ai custom-jobs create --display-name=my-run --config=")
    assert create.endswith(f" {WHERE} --format=value(name)")
    job = "projects/1/locations/r/customJobs/42"
    assert logs == f"gcloud ai custom-jobs stream-logs {job} {WHERE}"

    spec = google.json("ai")
    learner, actors = spec["workerPoolSpecs"]
    assert learner["containerSpec"]["imageUri"] == gpu.split("--tag=")[1].split()[0]
    assert actors["containerSpec"]["imageUri"] == cpu.split("--tag=")[1].split()[0]
    assert actors["replicaCount"] == 32
    assert spec["scheduling"]["strategy"] == "SPOT"
    logdir = "gs://my-project-seed-rl/my-run"
    arguments = learner["containerSpec"]["args"]
    assert {"--actors_per_worker=20", "--game=Breakout", f"--logdir={logdir}"} < set(arguments)
    assert f"TensorBoard: tensorboard --logdir={logdir}\n" in result.stdout
    assert f"checkpoints: {logdir}/checkpoints\n" in result.stdout
    assert f"custom-jobs cancel {job} {WHERE}" in result.stdout


def test_cloud_build(google: Cloud) -> None:
    result = google.run("train_mujoco.sh", "--cloud_build", "--bucket=gs://b/folder/", **HERE)
    assert result.returncode == 0, result.stderr
    build, *_ = google.calls()  # without an accelerator, one image is enough
    assert build.startswith("gcloud builds submit . --config=")
    assert build.endswith(f" {WHERE}")
    config = google.json("builds")
    (step,) = config["steps"]
    (image,) = config["images"]
    assert step["args"] == ["docker/build.sh", "mujoco", "cpu", f"--tag={image}"]
    assert google.json("ai")["workerPoolSpecs"][0]["containerSpec"]["imageUri"] == image
    assert "gs://b/folder/mujoco-" in result.stdout


@pytest.mark.parametrize(
    ("step", "num_calls"),
    [("build.sh atari gpu", 1), ("build.sh atari cpu", 2), ("create", 3), ("stream-logs", 4)],
)
def test_a_step_that_fails_ends_it(google: Cloud, step: str, num_calls: int) -> None:
    result = google.run("train_atari.sh", FAILS=step, **HERE)
    assert result.returncode == 7
    assert len(google.calls()) == num_calls
    assert "this failed with code 7: " in result.stderr.splitlines()[-1]
    assert step.split()[0] in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_cloud_build_that_fails_ends_it(google: Cloud) -> None:
    result = google.run("train_atari.sh", "--cloud_build", FAILS="builds submit", **HERE)
    assert result.returncode == 7
    assert len(google.calls()) == 1
    assert "this failed with code 7: gcloud builds submit" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("fails", "code", "num_calls"),
    [("no step", 0, 6), ("docker version", 1, 0), ("docker build", 1, 1), ("docker push", 1, 2)],
)
def test_images_are_built_and_pushed(google: Cloud, fails: str, code: int, num_calls: int) -> None:
    """With docker/build.sh as it is, over a stub of docker."""
    google.bring("docker/build.sh", "docker/common.sh", "scripts/venv.sh")
    result = google.run("train_atari.sh", FAILS=fails, **HERE)
    assert result.returncode == code, result.stderr
    calls = google.calls()
    assert len(calls) == num_calls
    for build, push, device in zip(calls[:4:2], calls[1:4:2], ("gpu", "cpu"), strict=False):
        assert build.startswith("docker build ")
        assert f"--build-arg DEVICE={device} --tag {IMAGE}:{device}-" in build
        assert push.startswith(f"docker push {IMAGE}:{device}-")


@pytest.mark.parametrize("script", [*SCRIPTS, "setup.sh"])
def test_no_project(google: Cloud, script: str) -> None:
    """Case 19: one line and code 2."""
    result = google.run(script, "--dry_run", REGION="r")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "no project is set: type --project=PROJECT or: gcloud config set project" in line
    assert google.calls() == []


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "no region is set"),
        (("--region=r", "--bucket=s3://b"), "--bucket=s3://b: wanted gs://NAME"),
        (("--region=r", "--logdir=x"), "leave out --logdir: --name and --bucket choose it"),
        (("--region=r", "--num_envs=8"), "leave out --num_envs"),
        (("--region=r", "--batch_size", "8"), "saw '8', wanted flags as in --game=Breakout"),
        (("--region=r", "--name=a/b"), "--name=a/b: wanted letters"),
        (("--region=r", "--frames_per_second=0"), "--frames_per_second=0.0: wanted more than 0"),
        (("--region=r", "--workers=0"), "wanted a whole number of at least 1, saw '0'"),
    ],
)
def test_mistakes(google: Cloud, argv: tuple[str, ...], words: str) -> None:
    result = google.run("train_atari.sh", "--project=p", *argv)
    assert result.returncode == 2
    assert words in result.stderr.splitlines()[-1]
    assert google.calls() == []


def test_without_gcloud(google: Cloud) -> None:
    (google.folder / "bin/gcloud").unlink()
    for command in ("bash", "sh", "basename", "cp", "dirname"):
        (google.folder / "bin" / command).symlink_to(str(shutil.which(command)))
    (google.folder / "bin/python3").symlink_to(sys.executable)
    # No other folder: the real one must never be called.
    path = str(google.folder / "bin")
    result = google.run("train_mujoco.sh", "--project=p", "--region=r", PATH=path)
    assert result.returncode == 2
    assert "found no gcloud: install it" in result.stderr.splitlines()[-1]
    assert google.calls() == [], "an image was built in vain"


def test_a_project_of_a_domain(google: Cloud) -> None:
    result = google.run("train_mujoco.sh", "--project=example.com:lab", "--region=r", "--dry_run")
    assert "r-docker.pkg.dev/example.com/lab/seed_rl/mujoco:cpu-" in result.stdout
    assert "gs://example-com-lab-seed-rl/mujoco-" in result.stdout


def dry_run(google: Cloud, script: str, *argv: str) -> tuple[str, Any, str]:
    """What is printed before the job's spec, the spec, and the commands."""
    result = google.run(script, "--dry_run", "--project=p", "--region=r", *argv)
    assert result.returncode == 0, result.stderr
    assert google.calls() == []
    start, end = result.stdout.index("{\n"), result.stdout.rindex("}\n") + 1
    return result.stdout[:start], json.loads(result.stdout[start:end]), result.stderr


PAPER: dict[str, dict[str, Any]] = {
    "train_atari.sh": {
        "batch_size": 64,
        "unroll_length": 80,
        "burn_in": 40,
        "replay_buffer_size": 100_000,
        "replay_buffer_min_size": 5_000,
        "replay_ratio": 0.75,
        "learning_rate": 1e-4,
        "clip_norm": 80.0,
        "inference_batch_size": 64,
        "num_eval_envs": 30,
        "num_envs": 640,
    },
    "train_dmlab": {
        "batch_size": 32,
        "unroll_length": 100,
        "inference_batch_size": 64,
        "entropy_cost": 1e-5,
        "lambda_": 0.99,
        "learning_rate": 1e-4,
        "adam_epsilon": 3.125e-7,
        "adam_beta_1": 0.0,
        "max_abs_reward": 1.0,
    },
    "train_football": {
        "game": "11_vs_11_hard_stochastic",
        "batch_size": 32,
        "unroll_length": 32,
        "discounting": 0.997,
        "entropy_cost": 7.33e-4,
        "learning_rate": 1.254e-4,
        "total_environment_frames": 500_000_000,
    },
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_learner_takes_what_the_scripts_say(
    google: Cloud, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 19: `--dry_run` shows the job, all commands and the cost. Flags are the paper's."""
    told, spec, commands = dry_run(google, script)
    assert "USD per hour" in told
    assert "USD per 1e9 frames at an assumed" in told
    for command in ("docker/build.sh", "custom-jobs create", "custom-jobs stream-logs"):
        assert f"+ {command}" in commands.replace("gcloud ai ", "")
    wanted_preset = {"atari": "paper", "dmlab": "paper_dmlab", "football": "paper_football"}
    pool = spec["workerPoolSpecs"][1]
    words = {word.lstrip("-").partition("=")[0]: word for word in pool["containerSpec"]["args"]}
    environment, agent = (words.pop(name).partition("=")[2] for name in ("environment", "agent"))
    workers = pool["replicaCount"]
    actors, batch = (
        int(words[name].partition("=")[2]) for name in ("actors_per_worker", "env_batch_size")
    )
    del words["actors_per_worker"]
    # Not by the registry, which asks for what is needed to play.
    if environment == "mujoco":
        pytest.importorskip("mujoco")
    config_class = importlib.import_module(f"seed_rl.envs.{environment}").Config
    if environment == "football" and importlib.util.find_spec("gfootball") is None:
        # Then only the names of its flags are checked.
        monkeypatch.setattr(config_class, "__post_init__", lambda self: None)
    preset = words.get("preset", "").partition("=")[2]
    assert preset == wanted_preset.get(environment, "")
    parsed = flags.parse(
        [*words.values(), f"--num_envs={workers * actors * batch}"],
        LearnerConfig,
        config_class,
        agents.load(agent).Config,
        PresetConfig,
        defaults=agents.preset(agent, preset),
    )
    values: dict[str, Any] = {}
    for config in parsed:
        values |= vars(config)
    for prefix, wanted in PAPER.items():
        if script.startswith(prefix):
            assert {name: values[name] for name in wanted} == wanted
    if script.startswith("train_dmlab_"):
        assert values["game"] == script.removeprefix("train_dmlab_").removesuffix(".sh")
    if script.startswith("train_football_"):
        wanted = {"train_football_scoring.sh": "scoring"}.get(script, "scoring,checkpoints")
        assert values["reward_experiment"] == wanted


def test_the_users_flags_come_last(google: Cloud) -> None:
    _, spec, _ = dry_run(
        google, "train_atari.sh", "--workers=2", "--inference_batch_size=8", "--accelerator=none"
    )
    learner, actors = spec["workerPoolSpecs"]
    arguments = learner["containerSpec"]["args"]
    assert arguments.index("--inference_batch_size=64") < arguments.index(
        "--inference_batch_size=8"
    )
    assert actors["replicaCount"] == 2
    assert "acceleratorType" not in learner["machineSpec"]


def test_a_dry_run_shows_what_cloud_build_would_do(google: Cloud) -> None:
    result = google.run(
        "train_mujoco.sh", "--dry_run", "--cloud_build", "--project=p", "--region=r"
    )
    assert '"docker/build.sh",' in result.stdout
    assert "+ gcloud builds submit . --config=" in result.stderr
    assert google.calls() == []


def test_an_unknown_price(google: Cloud) -> None:
    told, _, _ = dry_run(google, "train_mujoco.sh", "--learner_machine=x9-mega")
    assert "no estimate of the cost" in told


def test_setup(google: Cloud) -> None:
    """What is there is left as it is, what is missing is made."""
    result = google.run("setup.sh", DESCRIBE="1", **HERE)
    assert result.returncode == 0, result.stderr
    calls = "\n".join(google.calls())
    assert "services enable aiplatform.googleapis.com" in calls
    assert "buckets create gs://my-project-seed-rl --project=my-project --location=europe" in calls
    assert "repositories create seed_rl --repository-format=docker" in calls
    assert "auth configure-docker europe-west4-docker.pkg.dev" in calls

    (google.folder / "calls").unlink()
    assert google.run("setup.sh", DESCRIBE="0", **HERE).returncode == 0
    assert " create " not in "\n".join(google.calls())


@pytest.mark.parametrize(
    "step", ["services enable", "buckets create", "repositories create", "configure-docker"]
)
def test_setup_ends_where_a_step_fails(google: Cloud, step: str) -> None:
    result = google.run("setup.sh", DESCRIBE="1", FAILS=step, **HERE)
    assert result.returncode == 7
    assert step in google.calls()[-1]
    assert "ready" not in result.stdout
