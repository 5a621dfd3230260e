"""The 57 games: their scores, and that each is played."""

import numpy as np
import pytest
from emulators import BACKENDS

from seed_rl.envs import atari
from seed_rl.envs.atari.human_scores import human_scores
from seed_rl.envs.scores import ReferenceScores
from seed_rl.types import StepType, is_last

GAMES = sorted(human_scores())


def play(game: str, frames: int, full_action_space: bool, backend: str) -> int:
    """Random actions: rewards are finite, ends are followed by FIRST. How many pictures differ."""
    config = atari.Config(
        game=game, full_action_space=full_action_space, num_threads=1, atari_backend=backend
    )
    num_actions = atari.specs(config).action.num_choices
    environments = atari.make(config, [0], seed=0)
    rows, rng, pictures = environments.reset(), np.random.default_rng(0), set()
    for _ in range(frames // config.num_action_repeats):
        before = rows
        rows = environments.step(rng.integers(num_actions, size=1, dtype=np.int32))
        assert (rows.step_type == StepType.FIRST) == is_last(before.step_type)
        assert np.isfinite(rows.reward).all()
        assert rows.observation.shape == (1, 84, 84)
        pictures.add(rows.observation.tobytes())
    environments.close()
    return len(pictures)


def test_57_games_are_played():
    assert len(GAMES) == 57
    moving = [game for game in GAMES if play(game, 200, True, "ale_py") > 10]
    assert len(moving) > 45  # the others show a title first


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("full_action_space", [True, False])
@BACKENDS
def test_57_games_are_played_for_1000_frames(backend, full_action_space):
    """But for Surround on atari_py, which does not know it."""
    for game in GAMES:
        if (backend, game) != ("atari_py", "surround"):
            assert play(game, 1000, full_action_space, backend) > 20, game


def test_scores_of_people_and_of_chance():
    """Some of those that papers quote most; people beat chance at every game."""
    assert human_scores()["pong"] == ReferenceScores(-20.7, 14.6)
    assert human_scores()["breakout"] == ReferenceScores(1.7, 30.5)
    assert human_scores()["montezuma_revenge"] == ReferenceScores(0.0, 4753.3)
    assert human_scores()["skiing"] == ReferenceScores(-17098.1, -4336.9)
    assert all(scores.human > scores.random for scores in human_scores().values())


def test_a_game_has_its_scores_by_any_of_its_names():
    for name in ("MsPacman", "ALE/MsPacman-v5", "ms_pacman"):
        assert atari.reference_scores(atari.Config(game=name)) == (307.3, 6951.6)
    assert atari.reference_scores(atari.Config(game="Adventure")) is None
