"""What is being learned, by what: environment, agent and their configurations, as config.json."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from seed_rl import paths
from seed_rl.agent import Agent
from seed_rl.agents import registry as agents
from seed_rl.checkpoints import CheckpointError, Checkpoints
from seed_rl.envs import registry as environments
from seed_rl.envs.environment import Family
from seed_rl.envs.scores import ReferenceScores
from seed_rl.errors import UserError, as_user_error
from seed_rl.frame_stack import stacked_spec
from seed_rl.specs import EnvironmentSpecs

CONFIG_FILE = "config.json"
CHECKPOINT_FOLDER = "checkpoints"
LOCK_FILE = ".lock"
# What is there before the config: the launcher's folder, and what a start that failed leaves.
_BEFORE_CONFIG = frozenset({"logs", LOCK_FILE, CONFIG_FILE + ".new"})


class LogdirError(UserError):
    """The log dir holds something else than this run."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    environment: str
    environment_config: Any
    agent: str
    agent_config: Any
    seed: int

    @property
    def family(self) -> Family:
        return environments.load(self.environment)

    @property
    def num_action_repeats(self) -> int:
        """Environment frames of one agent step."""
        return getattr(self.environment_config, "num_action_repeats", 1)

    @property
    def num_stacked_frames(self) -> int:
        """Frames that the learner stacks into what the network sees."""
        return getattr(self.environment_config, "num_stacked_frames", 1)

    def environment_specs(self) -> EnvironmentSpecs:
        """Raises UserError where the settings make no environment."""
        with as_user_error(ValueError, ImportError):
            return self.family.specs(self.environment_config)

    def reference_scores(self) -> ReferenceScores | None:
        """What random play and people score in this environment, where the family knows that."""
        find = getattr(self.family, "reference_scores", None)
        scores: ReferenceScores | None = find(self.environment_config) if find else None
        return scores

    def make_agent(self) -> Agent:
        """The agent with fresh weights, for observations as the learner stacks them.

        Raises UserError where the settings make no agent for these environments.
        """
        single = self.environment_specs()
        with as_user_error(ValueError):
            seen = EnvironmentSpecs(
                stacked_spec(single.observation, self.num_stacked_frames), single.action
            )
            return agents.load(self.agent).make(self.agent_config, seen, self.seed)

    def to_json(self) -> dict[str, Any]:
        return {
            "environment": self.environment,
            "environment_config": dataclasses.asdict(self.environment_config),
            "agent": self.agent,
            "agent_config": dataclasses.asdict(self.agent_config),
            "seed": self.seed,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Experiment:
        return Experiment(
            value["environment"],
            environments.load(value["environment"]).Config(**value["environment_config"]),
            value["agent"],
            agents.load(value["agent"]).Config(**value["agent_config"]),
            value["seed"],
        )

    @staticmethod
    def read(logdir: str) -> Experiment:
        """The experiment that trained in `logdir`."""
        path = os.path.join(logdir, CONFIG_FILE)
        if not paths.exists(path):
            raise LogdirError(f"{logdir} has no {CONFIG_FILE}: no learner has run there")
        try:
            return Experiment.from_json(_read_config(path))
        except (KeyError, TypeError, ValueError, ImportError) as error:
            raise LogdirError(f"the settings in {path} can't be used: {error}") from error

    def compare_logdir(self, logdir: str) -> list[str]:
        """One line for every setting that has changed since the run in `logdir` last stopped.

        Raises LogdirError where the folder holds another run: other environments or another
        agent, or files that are not ours.
        """
        path = os.path.join(logdir, CONFIG_FILE)
        changes: list[str] = []
        if paths.exists(path):
            before, now = _settings(_read_config(path)), _settings(self.to_json())
            for name in sorted(before.keys() | now.keys()):
                if before.get(name) == now.get(name):
                    continue
                change = f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
                if name == "agent" or name.startswith("environment"):
                    raise LogdirError(
                        f"{logdir} holds another run, whose {change}; "
                        "choose another --logdir, or start with the settings of that run"
                    )
                changes.append(change)
        elif set(paths.listdir(logdir)) - _BEFORE_CONFIG:
            raise LogdirError(
                f"{logdir} is not empty and has no {CONFIG_FILE}: it is not a log dir of ours; "
                "choose another --logdir"
            )
        return changes

    def write(self, logdir: str) -> None:
        """Makes `logdir` this experiment's. The file is whole at any time."""
        paths.makedirs(logdir)
        text = json.dumps(self.to_json(), indent=2)
        paths.write_text(os.path.join(logdir, CONFIG_FILE), f"{text}\n")


class TrainedAgent(NamedTuple):
    agent: Agent
    experiment: Experiment
    frames: int  # environment frames that it has been trained on
    checkpoint: str


def load_trained(logdir: str, checkpoint: str = "") -> TrainedAgent:
    """The agent that was trained in `logdir`, with the weights of its newest whole checkpoint.

    `checkpoint` chooses another one, logdir/checkpoints/ckpt-N. Raises UserError where there is
    none, or where one of the agent's variables is not in it.
    """
    experiment = Experiment.read(logdir)
    agent = experiment.make_agent()
    frames = tf.Variable(0, dtype=tf.int64, trainable=False)
    checkpoints = Checkpoints(
        os.path.join(logdir, CHECKPOINT_FOLDER), {"agent": agent, "frames": frames}
    )
    if checkpoint:
        checkpoints.restore(checkpoint)
    path = checkpoint or checkpoints.restore_latest()
    if path is None:
        raise CheckpointError(f"{logdir} has no checkpoint yet: train a little longer")
    return TrainedAgent(agent, experiment, int(frames), path)


def _read_config(path: str) -> dict[str, Any]:
    text = paths.read_text(path)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise LogdirError(f"{path} is damaged, it is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise LogdirError(f"{path} is damaged: wanted a JSON object, saw {value!r}")
    return value


def _settings(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flattens nested JSON objects to 'agent_config/learning_rate': value."""
    settings = {}
    for key, part in value.items():
        if isinstance(part, dict):
            settings.update(_settings(part, f"{prefix}{key}/"))
        else:
            settings[prefix + key] = part
    return settings
