"""Plays a trained agent: `python -m seed_rl.evaluate --logdir=logs/... --episodes=10`.

Environments and agent are those of the log dir's config.json, and steps are answered by the same
Inference as in training: recurrent state, previous action, reward and frame stack included.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from seed_rl import devices, flags, specs
from seed_rl.config import option, require_seed
from seed_rl.errors import UserError
from seed_rl.metrics import Episode, EpisodeTracker, human_normalized_score

if TYPE_CHECKING:
    from seed_rl.envs.environment import Environments
    from seed_rl.envs.scores import ReferenceScores
    from seed_rl.inference import Inference

_logger = logging.getLogger(__name__)
_STILL_PLAYING_SECS = 30.0


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Evaluation: of which run, for how many episodes."""

    logdir: str = option("", "Folder of the run. Needed.")
    checkpoint: str = option("", "logdir/checkpoints/ckpt-N; empty = the newest whole one.")
    episodes: int = option(10, "Episodes to play.")
    num_envs: int = option(10, "Environments that play them side by side.")
    seed: int = option(1, "Seed of environments and sampled actions.")
    json: bool = option(False, "Print the result as one line of JSON, too.")

    def __post_init__(self) -> None:
        if not self.logdir:
            raise ValueError("--logdir is empty, wanted the folder of a run")
        for name in ("episodes", "num_envs"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}, wanted at least 1")
        require_seed(self.seed)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The episodes played, in the order of the environments."""

    returns: list[float]  # sums of raw rewards
    lengths: list[int]  # agent steps
    frames: int  # environment frames that the agent had been trained on
    checkpoint: str
    protocol: str
    acting: str  # how the agent chose its actions
    reference: ReferenceScores | None

    def summary(self) -> dict[str, Any]:
        mean = float(np.mean(self.returns))
        return {
            "episodes": len(self.returns),
            "return_mean": mean,
            "return_std": float(np.std(self.returns)),
            "return_min": float(np.min(self.returns)),
            "return_max": float(np.max(self.returns)),
            "length_mean": float(np.mean(self.lengths)),
            "trained_frames": self.frames,
            "checkpoint": self.checkpoint,
            "protocol": self.protocol,
            "acting": self.acting,
            "human_normalized_score": (
                None if self.reference is None else human_normalized_score(mean, self.reference)
            ),
        }


def quotas(episodes: int, num_envs: int) -> list[int]:
    """Episodes that each environment plays, as even as can be.

    They are fixed beforehand: taking the first `episodes` to end would favour short ones.
    """
    return [episodes // num_envs + (env < episodes % num_envs) for env in range(num_envs)]


def evaluate(
    config: EvaluateConfig, on_episode: Callable[[int, float], None] | None = None
) -> Evaluation:
    """Plays the episodes; calls `on_episode(episodes so far, return)` after each."""
    from seed_rl.experiment import load_trained
    from seed_rl.inference import Inference

    agent, experiment, frames, checkpoint = load_trained(config.logdir, config.checkpoint)
    num_envs = min(config.num_envs, config.episodes)
    inference = Inference(
        agent,
        experiment.environment_specs(),
        num_envs,
        num_envs,
        experiment.num_stacked_frames,
        config.seed,
        num_eval_envs=num_envs,
    )
    family, environment_config = experiment.family, experiment.environment_config
    if hasattr(family, "evaluation_config"):
        environment_config = family.evaluation_config(environment_config)
    environments = family.make(environment_config, range(num_envs), config.seed)
    try:
        episodes = _play(environments, inference, quotas(config.episodes, num_envs), on_episode)
    finally:
        environments.close()
    return Evaluation(
        returns=[episode.episode_return for episode in episodes],
        lengths=[episode.length for episode in episodes],
        frames=frames,
        checkpoint=checkpoint,
        protocol=family.describe(environment_config),
        acting=agent.describe_evaluation(),
        reference=experiment.reference_scores(),
    )


def _play(
    environments: Environments,
    inference: Inference,
    quota: list[int],
    on_episode: Callable[[int, float], None] | None,
) -> list[Episode]:
    """As many episodes of each environment as its quota; those beyond it don't count."""
    num_envs = len(quota)
    env_ids = np.arange(num_envs, dtype=np.int32)
    tracker = EpisodeTracker(num_envs)
    played: list[list[Episode]] = [[] for _ in quota]
    transition = environments.reset()
    told, steps = time.monotonic(), 0
    while True:
        if time.monotonic() - told > _STILL_PLAYING_SECS:
            told = time.monotonic()
            ended = sum(map(len, played))
            _logger.info("step %d, %d of %d episodes have ended", steps, ended, sum(quota))
        for env, episode in tracker.step(env_ids, transition.step_type, transition.raw_reward):
            if len(played[env]) < quota[env]:
                played[env].append(episode)
                if on_episode:
                    on_episode(sum(map(len, played)), episode.episode_return)
        if [len(episodes) for episodes in played] == quota:
            return [episode for episodes in played for episode in episodes]
        answers = inference(
            env_ids,
            transition.step_type,
            transition.reward,
            specs.flatten(transition.observation),
            num_envs,
        )
        transition = environments.step(answers.step.action)
        steps += 1


def main(argv: list[str]) -> int:
    """Evaluates, shows progress and the result. Returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        if {"--help", "-h"} & set(argv):
            print(flags.usage(EvaluateConfig))
            return 0
        (config,) = flags.parse(argv, EvaluateConfig)
        devices.start_tensorflow()

        def show(count: int, episode_return: float) -> None:
            print(f"episode {count}/{config.episodes}: return {episode_return:g}", flush=True)

        result = evaluate(config, show)
    except UserError as error:
        print(f"seed_rl: {error}", file=sys.stderr)
        return 2
    summary = result.summary()
    print(f"protocol: {summary['protocol']}")
    print(f"actions: {summary['acting']}")
    print(f"checkpoint: {summary['checkpoint']}, trained on {summary['trained_frames']:,} frames")
    print(
        f"return over {summary['episodes']} episodes: mean {summary['return_mean']:.2f}, "
        f"std {summary['return_std']:.2f}, min {summary['return_min']:g}, "
        f"max {summary['return_max']:g}; mean length {summary['length_mean']:.0f} agent steps"
    )
    if result.reference is not None:
        print(
            f"human-normalised score: {summary['human_normalized_score']:.1f} %, where random play "
            f"scores {result.reference.random:g} and people {result.reference.human:g}"
        )
    if config.json:
        print(json.dumps({**summary, "returns": result.returns, "lengths": result.lengths}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
