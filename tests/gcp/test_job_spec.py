"""What is submitted to Vertex AI, and what it would cost."""

import dataclasses
import importlib.util
import pathlib
import sys
from types import ModuleType

import pytest

FOLDER = pathlib.Path(__file__).parent.parent.parent / "gcp"


def load(name: str) -> ModuleType:
    """A module of the folder gcp, which is no package."""
    found = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # where dataclasses look for their module
    found.loader.exec_module(module)
    return module


job_spec = load("job_spec")
JOB = job_spec.Job(
    learner_image="learner",
    actor_image="actor",
    learner_machine="g2-standard-32",
    accelerator="NVIDIA_L4",
    actor_machine="e2-standard-8",
    workers=32,
    actors_per_worker=20,
    logdir="gs://bucket/run",
    spot=False,
    flags=["--agent=r2d2"],
)


def test_the_spec() -> None:
    spec = job_spec.spec(JOB)
    learner, actors = spec["workerPoolSpecs"]
    assert learner["machineSpec"] == {
        "machineType": "g2-standard-32",
        "acceleratorType": "NVIDIA_L4",
        "acceleratorCount": 1,
    }
    assert actors["machineSpec"] == {"machineType": "e2-standard-8"}
    assert (learner["replicaCount"], actors["replicaCount"]) == (1, 32)
    assert learner["containerSpec"]["imageUri"] == "learner"
    assert actors["containerSpec"]["imageUri"] == "actor"
    for pool in (learner, actors):
        assert pool["containerSpec"]["command"] == ["python", "-m", "seed_rl.cloud"]
        assert pool["containerSpec"]["args"] == [
            "--agent=r2d2",
            "--actors_per_worker=20",
            "--logdir=gs://bucket/run",
        ]
    assert spec["scheduling"] == {"strategy": "STANDARD", "restartJobOnWorkerRestart": False}


def test_spot_and_no_accelerator() -> None:
    spec = job_spec.spec(dataclasses.replace(JOB, spot=True, accelerator=""))
    assert spec["scheduling"]["strategy"] == "SPOT"
    assert spec["workerPoolSpecs"][0]["machineSpec"] == {"machineType": "g2-standard-32"}


def test_cost() -> None:
    prices = {"g2-standard-32": (2.0, 0.5), "NVIDIA_L4": (1.0, 0.25), "e2-standard-8": (0.5, 0.125)}
    assert job_spec.usd_per_hour(JOB, prices) == 2 + 1 + 32 * 0.5
    assert job_spec.usd_per_hour(dataclasses.replace(JOB, spot=True), prices) == 0.75 + 32 * 0.125
    same = dataclasses.replace(JOB, actor_machine="g2-standard-32", accelerator="")
    assert job_spec.usd_per_hour(same, prices) == 33 * 2
    assert (
        job_spec.usd_per_hour(dataclasses.replace(JOB, accelerator="NVIDIA_B200"), prices) is None
    )
    # 1e9 frames take 1e6 s = 277.8 h.
    assert job_spec.usd_per_billion_frames(3.6, 1000) == pytest.approx(1000)


def test_the_table_of_prices(tmp_path: pathlib.Path) -> None:
    """A spot machine is never dearer; a row that can't be read is told of."""
    prices = job_spec.read_prices(FOLDER / "prices.csv")
    assert {"g2-standard-32", "NVIDIA_L4", "e2-standard-8"} < prices.keys()
    assert all(0 <= spot <= on_demand for on_demand, spot in prices.values())
    path = tmp_path / "prices.csv"
    path.write_text("name,on_demand,spot\ne2-standard-8,cheap,0\n")
    with pytest.raises(job_spec.UserError, match="wanted the columns name,on_demand,spot"):
        job_spec.read_prices(path)
