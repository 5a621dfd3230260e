"""What needs Google Research Football itself: scripts/install_football.sh installs it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from seed_rl.envs import football, registry
from seed_rl.envs.football import scenarios
from seed_rl.envs.football.environments import FootballEnvironments, create
from seed_rl.types import StepType, Transition

pytest.importorskip("gfootball", reason="needs gfootball: type scripts/install_football.sh")

GOAL = "academy_empty_goal_close"
IDLE, RIGHT, SHOT = 0, 5, 12


def make(env_ids: Any = (0,), seed: int = 0, **options: Any) -> FootballEnvironments:
    return football.make(football.Config(**{"game": GOAL, **options}), env_ids, seed)


def play(environments: FootballEnvironments, actions: np.ndarray) -> Iterator[Transition]:
    """The rows after a reset, and after each of `actions` `[steps, n]`."""
    yield environments.reset()
    for action in actions:
        yield environments.step(action)
    environments.close()


def random_actions(steps: int, n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(19, size=(steps, n)).astype(np.int32)


def digests(env_ids: Any, seed: int, actions: np.ndarray, **options: Any) -> list[str]:
    """One for each environment, of all its rows."""
    hashes = [hashlib.sha256() for _ in env_ids]
    for rows in play(make(env_ids, seed, **options), actions):
        for i, one in enumerate(hashes):
            one.update(b"".join(leaf[i].tobytes() for leaf in rows))
    return [one.hexdigest() for one in hashes]


def test_the_registry_has_it_and_names_what_it_can_play():
    assert registry.load("football") is football
    assert {GOAL, "11_vs_11_easy_stochastic", "11_vs_11_hard_stochastic"} < {*scenarios.names()}
    with pytest.raises(ValueError, match=r"gaol_close: .*; did you mean academy_empty_goal_close"):
        football.Config(game="academy_empty_gaol_close")


@pytest.mark.slow
@pytest.mark.parametrize("game", scenarios.names())
def test_every_scenario_plays(game):
    n = 2
    for rows in play(make(range(n), game=game), random_actions(60, n)):
        assert rows.observation.shape == (n, 72 * 96 * 16 // 8)
        assert (np.abs(rows.raw_reward) <= 1).all()


@pytest.mark.parametrize("size", ["default", "medium", "large"])
def test_rows_are_what_gfootball_returns(size):
    """Maps and rewards are those of an environment of gfootball with the same seeds."""
    environments = make([3], seed=5, smm_size=size, reward_experiment="scoring,checkpoints")
    shape = environments.specs.observation.bits
    bare = create(GOAL, "scoring,checkpoints", shape[:2])
    rows = environments.reset()
    config = environments._envs[0].unwrapped._config
    for key in ("game_engine_random_seed", "reverse_team_processing"):
        bare.unwrapped._config[key] = config[key]
    seen, reward, score = bare.reset(), 0.0, 0
    for action in random_actions(300, 1):
        assert set(np.unique(seen)) == {0, 255}
        assert np.array_equal(np.unpackbits(rows.observation[0]).reshape(shape) * 255, seen)
        assert (rows.reward[0], rows.raw_reward[0]) == (np.float32(reward), score)
        if rows.step_type[0] >= StepType.TERMINATED:
            break
        rows = environments.step(action)
        seen, reward, done, info = bare.step(int(action[0]))
        score = info["score_reward"]
        assert done == (rows.step_type[0] >= StepType.TERMINATED)
    assert done
    bare.close()
    environments.close()


@pytest.mark.parametrize(("rewards", "total"), [("scoring", 1), ("scoring,checkpoints", 2)])
def test_a_goal_ends_the_exercise(rewards, total):
    """The score is 1, whatever is learned from; run to the goal, then shoot."""
    actions = np.full((30, 1), RIGHT, np.int32)
    actions[15:] = SHOT
    reward = score = 0.0
    for rows in play(make(reward_experiment=rewards), actions):
        reward += rows.reward[0]
        score += rows.raw_reward[0]
        if rows.step_type[0] >= StepType.TERMINATED:
            break
    assert rows.step_type[0] == StepType.TERMINATED
    assert rows.raw_reward[0] == score == 1
    assert reward == pytest.approx(total)


@pytest.mark.parametrize(
    ("game", "length", "actions", "kind"),
    [
        # Back and forth with the ball: in some episodes nobody gets there in time to end it.
        ("academy_run_to_score", 400, [3, 7], StepType.TRUNCATED),
        ("1_vs_1_easy", 500, [IDLE], StepType.TERMINATED),
    ],
)
def test_the_end_of_the_clock(game, length, actions, kind):
    """Case 93: the end of a match, but only a limit to an exercise."""
    n = 4
    steps = np.resize(actions, (length + 2, 1)).repeat(n, axis=1).astype(np.int32)
    kinds = np.stack([rows.step_type for rows in play(make(range(n), game=game), steps)])
    # Those that nothing else ended. The engine's clock starts at the second step.
    whole = (kinds[1 : length + 1] == StepType.MID).all(axis=0)
    assert whole.any()
    assert (kinds[length + 1, whole] == kind).all()
    assert (kinds[length + 2, whole] == StepType.FIRST).all()
    others = kinds[:, ~whole]
    assert (others[others >= StepType.TERMINATED] == StepType.TERMINATED).all()


def test_the_same_seed_and_actions_give_the_same_rows():
    """Case 107: for 500 steps, over ends of episodes, in other groups and another process."""
    actions = random_actions(500, 2)
    both = digests([4, 9], 1, actions)
    assert both[0] != both[1]
    other = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, check=True, timeout=60
    )
    assert other.stdout.split() == both[1:]


@pytest.mark.parametrize("other", [{"env_ids": [1]}, {"seed": 2}])
def test_other_seeds_reach_the_engine(other):
    """Case 107: another environment or run plays another match, with the same actions."""
    actions = np.full((150, 1), IDLE, np.int32)
    game = "11_vs_11_easy_stochastic"
    one = digests([0], 1, actions, game=game)
    assert digests(**{"env_ids": [0], "seed": 1, **other}, actions=actions, game=game) != one
    assert digests([0], 1, actions, game=game) == one


if __name__ == "__main__":  # another process, for the test above
    print(*digests([9], 1, random_actions(500, 2)[:, 1:]))
