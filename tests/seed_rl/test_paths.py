"""Log dirs that are no folders here: TensorFlow's file system in memory plays a bucket."""

import logging
import pathlib
import uuid

import learners
import pytest
import tensorflow as tf

from seed_rl import paths
from seed_rl.errors import UserError
from seed_rl.experiment import LogdirError, load_trained


@pytest.fixture(params=["local", "remote"])
def folder(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    return str(tmp_path) if request.param == "local" else f"ram://{uuid.uuid4().hex}"


def test_files(folder: str) -> None:
    """The same on both."""
    inner = f"{folder}/outer/inner"
    assert paths.listdir(inner) == []
    paths.remove_tree(inner)
    paths.makedirs(inner)
    paths.makedirs(inner)
    for text in ("one", "two"):
        paths.write_text(f"{inner}/a.json", text)
        assert paths.read_text(f"{inner}/a.json") == text
    assert paths.listdir(inner) == ["a.json"]
    assert paths.listdir(f"{folder}/outer") == ["inner"]
    paths.write_text(f"{inner}/b", "new")
    paths.replace(f"{inner}/b", f"{inner}/a.json")
    assert paths.read_text(f"{inner}/a.json") == "new"
    assert not paths.exists(f"{inner}/b")
    paths.remove(f"{inner}/a.json")
    assert not paths.exists(f"{inner}/a.json")
    paths.write_text(f"{inner}/c", "")
    paths.remove_tree(inner)
    assert not paths.exists(f"{inner}/c")


def test_what_is_missing_is_an_os_error(folder: str) -> None:
    for call in (paths.read_text, paths.remove):
        with pytest.raises(FileNotFoundError, match="nothing"):
            call(f"{folder}/nothing")


def test_an_unknown_scheme_is_an_os_error() -> None:
    with pytest.raises(OSError, match="no-such-scheme://x"):
        paths.read_text("no-such-scheme://x")


def test_an_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow's say where they arose in lines of their own."""

    def fail(path: str) -> bool:
        raise tf.errors.UnavailableError(None, None, f"no network\n\t when reading {path}")

    monkeypatch.setattr(tf.io.gfile, "exists", fail)
    with pytest.raises(OSError, match=r"^gs://b/c: no network when reading gs://b/c$"):
        paths.exists("gs://b/c")


@pytest.fixture
def bucket() -> str:
    return f"ram://{uuid.uuid4().hex}"


def make_learner(bucket: str, tmp_path: pathlib.Path, **options: object) -> learners.Learner:
    return learners.make_learner(
        f"{bucket}/run", server_address=f"unix:{tmp_path}/socket", **options
    )


def test_training_resumes_from_a_bucket(
    bucket: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Config, checkpoints and points for TensorBoard; nothing is written here."""
    learner = make_learner(bucket, tmp_path, max_bad_updates=0)
    with learners.running(learner) as run:
        run.wait_for_updates(3)
    assert run.failure is None
    updates = learner.num_updates
    names = paths.listdir(f"{bucket}/run")
    assert {"checkpoints", "config.json"} < set(names)
    assert any(name.startswith("events.out.tfevents") for name in names)
    checkpoint = f"{bucket}/run/checkpoints/ckpt-{updates}"
    assert tf.io.gfile.exists(f"{checkpoint}.index")
    assert "unfinished" not in paths.listdir(f"{bucket}/run/checkpoints")
    assert list(tmp_path.iterdir()) == []

    trained = load_trained(f"{bucket}/run")
    assert trained.checkpoint == checkpoint
    assert trained.frames == learner.num_frames
    with caplog.at_level(logging.INFO):
        again = make_learner(bucket, tmp_path)
    assert again.num_updates == updates
    assert f"resuming from {checkpoint}" in caplog.text


def test_only_the_newest_checkpoints_are_kept(bucket: str, tmp_path: pathlib.Path) -> None:
    learner = make_learner(bucket, tmp_path)
    folder = f"{bucket}/run/checkpoints"
    for number in range(5):
        learner._checkpoints.save(number)
    indices = sorted(name for name in paths.listdir(folder) if name.endswith(".index"))
    assert indices == ["ckpt-2.index", "ckpt-3.index", "ckpt-4.index"]
    assert len(paths.listdir(folder)) == 6


def test_another_runs_bucket_is_refused(bucket: str, tmp_path: pathlib.Path) -> None:
    paths.write_text(f"{bucket}/run/photo.jpg", "")
    with pytest.raises(LogdirError, match=r"is not empty and has no config\.json"):
        make_learner(bucket, tmp_path)


def test_a_replay_is_not_saved_to_a_bucket(bucket: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="--save_replay can't write to ram://"):
        make_learner(bucket, tmp_path, agent="r2d2", save_replay=True)
