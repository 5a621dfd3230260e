"""The experiment of a log dir: what it is, and whose the folder is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from seed_rl.agents import registry as agents
from seed_rl.checkpoints import CheckpointError, Checkpoints
from seed_rl.envs import registry as environments
from seed_rl.errors import UserError
from seed_rl.experiment import CHECKPOINT_FOLDER, Experiment, LogdirError, load_trained


def claim(experiment: Experiment, logdir: str) -> list[str]:
    """What the learner does with a log dir; returns what has changed in it."""
    changes = experiment.compare_logdir(logdir)
    experiment.write(logdir)
    return changes


def make(
    environment: str = "catch",
    environment_options: dict[str, Any] | None = None,
    seed: int = 0,
    agent: str = "vtrace",
    **agent_options: Any,
) -> Experiment:
    return Experiment(
        environment,
        environments.load(environment).Config(**environment_options or {}),
        agent,
        agents.load(agent).Config(**agent_options),
        seed,
    )


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }


def test_json_and_back() -> None:
    experiment = make(
        environment_options={"board_size": 6}, seed=7, learning_rate=1e-4, lstm_size=8
    )
    assert Experiment.from_json(json.loads(json.dumps(experiment.to_json()))) == experiment


def test_a_new_log_dir_is_made_and_read_again(tmp_path: Path) -> None:
    experiment = make(lstm_size=4)
    logdir = tmp_path / "a" / "b"
    assert claim(experiment, str(logdir)) == []
    assert Experiment.read(str(logdir)) == experiment
    assert [path.name for path in logdir.iterdir()] == ["config.json"]


def test_the_same_experiment_goes_on_silently(tmp_path: Path) -> None:
    claim(make(), str(tmp_path))
    assert claim(make(), str(tmp_path)) == []


def test_a_changed_setting_goes_on_with_a_line(tmp_path: Path) -> None:
    claim(make(learning_rate=1e-3), str(tmp_path))
    changed = make(learning_rate=2e-3, seed=5)
    assert claim(changed, str(tmp_path)) == [
        "agent_config/learning_rate was 0.001 and is 0.002",
        "seed was 0 and is 5",
    ]
    assert Experiment.read(str(tmp_path)) == changed
    assert claim(changed, str(tmp_path)) == []


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: make(environment_options={"board_size": 6}), "board_size was 12 and is 6"),
        (lambda: make("gym"), "environment was 'catch' and is 'gym'"),
        (lambda: dataclasses.replace(make(), agent="r2d2"), "agent was 'vtrace' and is 'r2d2'"),
    ],
)
def test_another_run_is_refused_and_untouched(tmp_path: Path, other: Any, words: str) -> None:
    claim(make(), str(tmp_path))
    before = snapshot(tmp_path)
    with pytest.raises(LogdirError, match=f"holds another run.*{words}.*choose another --logdir"):
        claim(other(), str(tmp_path))
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["thesis.tex", ".hidden", "checkpoints", "log"])
def test_a_foreign_folder_is_refused_and_untouched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    before = snapshot(tmp_path)
    with pytest.raises(LogdirError, match=r"is not empty and has no config\.json"):
        claim(make(), str(tmp_path))
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["logs", "config.json.new"])
def test_what_an_interrupted_start_leaves_is_no_obstacle(tmp_path: Path, name: str) -> None:
    """The launcher's folder, and a config that was not yet in its place."""
    if name == "logs":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text('{"environ')
    assert claim(make(), str(tmp_path)) == []
    assert Experiment.read(str(tmp_path)) == make()


@pytest.mark.parametrize(
    "content",
    ["", '{"environment": "catch"', "[]", "{}", '{"environment": "nosuch", "agent": "vtrace"}'],
)
def test_a_config_that_makes_no_sense_is_an_error_of_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    for function in (make().compare_logdir, Experiment.read):
        with pytest.raises(UserError) as info:
            function(str(tmp_path))
        assert str(tmp_path) in str(info.value)
        assert "\n" not in str(info.value)
    assert (tmp_path / "config.json").read_text() == content


def test_a_config_of_another_version(tmp_path: Path) -> None:
    """A setting that is new has its default; one that is gone is named."""
    claim(make(), str(tmp_path))
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text())
    del settings["agent_config"]["kl_cost"]
    path.write_text(json.dumps(settings))
    assert Experiment.read(str(tmp_path)) == make()
    settings["agent_config"]["momentum"] = 0.5
    path.write_text(json.dumps(settings))
    with pytest.raises(LogdirError, match="momentum"):
        Experiment.read(str(tmp_path))


def test_no_learner_has_run_there(tmp_path: Path) -> None:
    with pytest.raises(LogdirError, match="no learner has run there"):
        Experiment.read(str(tmp_path))


def test_observations_are_stacked_for_the_agent() -> None:
    stacked = make(environment_options={"num_stacked_frames": 4})
    assert stacked.num_stacked_frames == 4
    assert make("gym").num_stacked_frames == make("gym").num_action_repeats == 1
    torso = stacked.make_agent().trainable_variables  # type: ignore[attr-defined]
    assert any(tuple(variable.shape)[-2] == 4 for variable in torso if len(variable.shape) == 4)


@pytest.mark.parametrize(
    ("experiment", "words"),
    [
        (lambda: make("gym", {"game": "NoSuchGame-v0"}), "--game=NoSuchGame-v0"),
        (lambda: make("gym", network="deep"), "network"),
        (lambda: make("gym", {"game": "Pendulum-v1"}, agent="r2d2"), "wanted one action"),
        (lambda: make(environment_options={"num_stacked_frames": 3}), "wanted 1, 2, 4 or 8"),
    ],
)
def test_settings_that_do_not_fit_are_the_users_mistake(experiment: Any, words: str) -> None:
    """Case 24: one line, no traceback."""
    with pytest.raises(UserError, match=words):
        experiment().make_agent()


def trained(logdir: Path, **agent_options: Any) -> Any:
    """Saves an agent whose weights are not those of its seed; returns it."""
    experiment = make(**agent_options)
    claim(experiment, str(logdir))
    agent: Any = experiment.make_agent()
    for variable in agent.trainable_variables:
        variable.assign_add(variable * 0 + 1)
    frames = tf.Variable(1200, dtype=tf.int64)
    Checkpoints(str(logdir / CHECKPOINT_FOLDER), {"agent": agent, "frames": frames}).save(3)
    return agent


def test_weights_are_loaded_in_three_lines(tmp_path: Path) -> None:
    """Case 78: as documented, from anywhere, with every weight matched."""
    agent = trained(tmp_path, lstm_size=4)
    script = f"""
from seed_rl.experiment import load_trained
trained = load_trained({str(tmp_path)!r})
state = trained.agent.initial_state(batch_size=1)
"""
    names: dict[str, Any] = {}
    exec(script, names)
    loaded = names["trained"]
    assert loaded.frames == 1200
    assert loaded.checkpoint == str(tmp_path / CHECKPOINT_FOLDER / "ckpt-3")
    assert loaded.experiment == make(lstm_size=4)
    assert len(agent.trainable_variables) == len(loaded.agent.trainable_variables) > 5
    for one, other in zip(agent.trainable_variables, loaded.agent.trainable_variables, strict=True):
        np.testing.assert_array_equal(one, other)
    chosen = load_trained(str(tmp_path), loaded.checkpoint)
    assert chosen.frames == 1200


def test_weights_of_another_network_are_not_loaded(tmp_path: Path) -> None:
    """Case 78: the names that do not match are listed."""
    trained(tmp_path)
    claim(make(lstm_size=4), str(tmp_path))
    with pytest.raises(CheckpointError, match="agent/_body/_lstm/_bias: absent in the checkpoint"):
        load_trained(str(tmp_path))


def test_nothing_is_loaded_where_nothing_was_saved(tmp_path: Path) -> None:
    claim(make(), str(tmp_path))
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        load_trained(str(tmp_path))
