"""Evaluation: the same path through the network as in training, and no bias between episodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from seed_rl import devices, specs
from seed_rl import evaluate as evaluation
from seed_rl.agents import registry as agents
from seed_rl.checkpoints import Checkpoints
from seed_rl.envs import registry as environments
from seed_rl.envs.gym.factory import FactoryFamily
from seed_rl.envs.scores import ReferenceScores
from seed_rl.errors import UserError
from seed_rl.evaluate import EvaluateConfig, evaluate, quotas
from seed_rl.experiment import CHECKPOINT_FOLDER, Experiment, load_trained
from seed_rl.inference import Inference
from seed_rl.types import StepInputs, StepType

# Environments of a user's own, in one file: they know their id by the seed that they are given.
MODULE = """
import gymnasium
import numpy as np
from seed_rl.envs.seeding import environment_seed

LOG = []  # (environment, action)

class Environment(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.id = next(i for i in range(100) if environment_seed(1, i) == seed)
        self.time = 0
        return self.observe(), {}

    def observe(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def step(self, action):
        LOG.append((self.id, int(action)))
        self.time += 1
        return self.observe(), *self.outcome(action), {}

class Lengths(Environment):
    def outcome(self, action):
        length = 1000 if self.id else 10
        return float(self.id and self.time == length), self.time == length, False

class Noise(Environment):
    def outcome(self, action):
        return float(action) - 1.5, self.time == 7 + self.id, False
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "own_environments.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_environments  # type: ignore[import-not-found]

    yield own_environments
    del sys.modules["own_environments"]


@pytest.fixture
def tensorflow_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts once in a process, which pytest's has behind it."""
    monkeypatch.setattr(devices, "start_tensorflow", lambda: None)


def save(logdir: Path, environment: str, number: int = 1, **options: Any) -> None:
    """Log dir of a run whose network has strong opinions."""
    algorithm = agents.load("vtrace")
    experiment = Experiment(
        environment,
        environments.load(environment).Config(),
        "vtrace",
        algorithm.Config(**options),
        0,
    )
    experiment.write(str(logdir))
    agent: Any = experiment.make_agent()
    rng = np.random.default_rng(0)
    for variable in agent.trainable_variables:
        scale = (5 if variable.name.startswith("policy") else 1.5) / variable.shape[0] ** 0.5
        variable.assign(rng.normal(0, scale, variable.shape))
    parts = {"agent": agent, "frames": tf.Variable(100 * number, dtype=tf.int64)}
    Checkpoints(str(logdir / CHECKPOINT_FOLDER), parts).save(number)


def test_quotas() -> None:
    assert quotas(10, 10) == [1] * 10
    assert quotas(10, 4) == [3, 3, 2, 2]
    assert quotas(2, 3) == [1, 1, 0]
    assert quotas(7, 1) == [7]


def test_short_episodes_are_not_favoured(tmp_path: Path, module: Any) -> None:
    """Case 75: lengths 10 and 1,000, returns 0 and 1."""
    save(tmp_path / "run", "own_environments:Lengths")
    seen = []
    result = evaluate(
        EvaluateConfig(logdir=str(tmp_path / "run"), episodes=2, num_envs=2),
        lambda count, value: seen.append((count, value)),
    )
    assert result.returns == [0.0, 1.0]
    assert result.lengths == [10, 1000]
    assert result.summary()["return_mean"] == 0.5
    assert seen == [(1, 0.0), (2, 1.0)]
    ids = [env_id for env_id, _ in module.LOG]
    assert ids.count(0) > 900, "it was not stepped on, so that nothing would have shown a bias"


@pytest.mark.parametrize("lstm_size", [0, 8])
def test_actions_are_those_of_inference_bit_for_bit(
    tmp_path: Path, module: Any, lstm_size: int
) -> None:
    """Case 4: the Inference of training, fed by hand with the same seed."""
    save(tmp_path / "run", "own_environments:Noise", lstm_size=lstm_size)
    config = EvaluateConfig(logdir=str(tmp_path / "run"), episodes=40, num_envs=3)
    result = evaluate(config)
    evaluated, module.LOG[:] = list(module.LOG), []
    assert len(evaluated) >= 3 * 90

    agent, experiment, _, _ = load_trained(config.logdir)
    inference = Inference(agent, experiment.environment_specs(), 3, 3, seed=config.seed)
    env = experiment.family.make(experiment.environment_config, range(3), config.seed)
    transition = env.reset()
    while len(module.LOG) < len(evaluated):
        answers = inference(
            np.arange(3, dtype=np.int32),
            transition.step_type,
            transition.reward,
            specs.flatten(transition.observation),
            3,
        )
        transition = env.step(answers.step.action)
    assert list(module.LOG) == evaluated
    assert len({action for _, action in evaluated}) >= 3
    assert sum(result.returns) == pytest.approx(
        sum(action - 1.5 for action in counted_actions(evaluated, result.lengths)), abs=1e-3
    )


def counted_actions(log: list[tuple[int, int]], lengths: list[int]) -> list[int]:
    """The actions of the episodes that count: of each environment the first ones."""
    actions: list[int] = []
    per_env = quotas(len(lengths), 3)
    start = 0
    for env_id, quota in enumerate(per_env):
        steps = sum(lengths[start : start + quota])
        actions += [action for i, action in log if i == env_id][:steps]
        start += quota
    return actions


def test_memory_previous_action_and_reward_are_used(tmp_path: Path, module: Any) -> None:
    """Case 41: against the network stepped by hand, without Inference; and forgetting matters."""
    save(tmp_path / "run", "own_environments:Noise", lstm_size=8)
    config = EvaluateConfig(logdir=str(tmp_path / "run"), episodes=12, num_envs=2)
    evaluate(config)
    evaluated = list(module.LOG)
    agent, experiment, _, _ = load_trained(config.logdir)

    def play(forget: str) -> list[tuple[int, int]]:
        module.LOG[:] = []
        env = experiment.family.make(experiment.environment_config, range(2), config.seed)
        transition = env.reset()
        state, action, call = agent.initial_state(2), np.zeros(2, np.int32), 0
        while len(module.LOG) < len(evaluated):
            call += 1
            is_first = transition.step_type == StepType.FIRST
            previous = np.where(is_first, 0, action).astype(np.int32)
            if forget == "state":
                state = agent.initial_state(2)
            step = StepInputs(
                tf.constant(transition.step_type),
                tf.constant(transition.reward * (forget != "reward")),
                tf.constant(transition.observation),
                tf.constant(previous * (forget != "action")),
            )
            output = agent.act(step, state, tf.constant([config.seed, call]), tf.ones(1))
            state, action = output.state, output.action.numpy()
            transition = env.step(action)
        return list(module.LOG)

    assert play(forget="nothing") == evaluated
    for forget in ("state", "reward", "action"):
        assert play(forget) != evaluated, forget


@pytest.mark.usefixtures("tensorflow_has_started")
def test_the_command_prints_the_result(
    tmp_path: Path, module: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 4: and the protocol."""
    logdir = tmp_path / "run"
    save(logdir, "own_environments:Noise", number=1)
    save(logdir, "own_environments:Noise", number=2)
    argv = [f"--logdir={logdir}", "--episodes=3", "--num_envs=5", "--json"]
    assert evaluation.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == [f"episode {i}/3" for i in (1, 2, 3)]
    assert lines[3] == "protocol: environments of own_environments:Noise"
    assert lines[4] == "actions: sampled from the policy"
    assert lines[5] == f"checkpoint: {logdir}/checkpoints/ckpt-2, trained on 200 frames"
    assert lines[6].startswith("return over 3 episodes: mean ")
    result = json.loads(lines[7])
    assert result["human_normalized_score"] is None
    assert result["lengths"] == [7, 8, 9]
    assert len(result["returns"]) == result["episodes"] == 3
    np.testing.assert_allclose(result["return_mean"], np.mean(result["returns"]))
    np.testing.assert_allclose(result["return_std"], np.std(result["returns"]))

    argv[1:] = ["--episodes=1", f"--checkpoint={logdir}/checkpoints/ckpt-1"]
    assert evaluation.main(argv) == 0
    assert "ckpt-1, trained on 100 frames" in capsys.readouterr().out


@pytest.mark.usefixtures("tensorflow_has_started")
def test_the_score_is_told_as_a_share_of_what_people_score(
    tmp_path: Path,
    module: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By any family that knows what they do. In `Lengths` the two episodes return 0 and 1."""
    monkeypatch.setattr(
        FactoryFamily,
        "reference_scores",
        lambda self, config: ReferenceScores(random=-1.5, human=2.5),
        raising=False,
    )
    save(tmp_path, "own_environments:Lengths")
    assert evaluation.main([f"--logdir={tmp_path}", "--episodes=2", "--json"]) == 0
    *_, line, result = capsys.readouterr().out.splitlines()
    assert line == ("human-normalised score: 50.0 %, where random play scores -1.5 and people 2.5")
    assert json.loads(result)["human_normalized_score"] == 50


def test_atari_is_measured_by_people() -> None:
    """Case 1: and played by the protocol, with R2D2's epsilon of evaluation told."""
    experiment = Experiment(
        "atari",
        environments.load("atari").Config(game="Pong"),
        "r2d2",
        agents.load("r2d2").Config(),
        0,
    )
    assert experiment.reference_scores() == (-20.7, 14.6)
    assert experiment.make_agent().describe_evaluation() == (
        "the best, or with probability 0.001 any (eval_epsilon)"
    )


@pytest.mark.usefixtures("tensorflow_has_started")
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "--logdir is empty"),
        (["--logdir={logdir}", "--episodes=0"], "--episodes is 0"),
        (["--logdir={logdir}", "--num_envs=0"], "--num_envs is 0"),
        (["--logdir={logdir}", "--seed=-1"], "--seed is -1"),
        (["--logdir={logdir}/nowhere"], "no learner has run there"),
        (["--logdir={logdir}", "--checkpoint={logdir}/ckpt-9"], "there is no checkpoint"),
        (["--logdir={logdir}", "--episode=3"], "'episode'"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, "catch")
    assert evaluation.main([word.format(logdir=tmp_path) for word in argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluation.main(["--help"]) == 0
    assert "--episodes=10" in capsys.readouterr().out


def test_environments_are_closed_when_evaluation_fails(tmp_path: Path, module: Any) -> None:
    closed = []
    module.Noise.close = lambda self: closed.append(self)
    save(tmp_path / "run", "own_environments:Noise")
    before = len(closed)

    def fail(count: int, value: float) -> None:
        raise UserError("enough")

    with pytest.raises(UserError, match="enough"):
        evaluate(EvaluateConfig(logdir=str(tmp_path / "run"), num_envs=4), fail)
    assert len(closed) - before >= 4
