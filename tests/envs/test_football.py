"""What needs no engine: configuration, packing, ends of episodes, seeds, errors."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seed_rl.envs import football, registry
from seed_rl.envs.football import scenarios
from seed_rl.envs.football.environments import FootballEnvironments
from seed_rl.specs import packed_bits
from seed_rl.types import StepType

NAMES = ("11_vs_11_easy_stochastic", "11_vs_11_stochastic", "5_vs_5", "academy_empty_goal_close")
SHAPE = (72, 96, 16)
LENGTH = 6


class Game:
    """What gfootball's environments do and refuse to do, without a game.

    The reward of step t is t + 1/2, its score t. An episode ends after LENGTH steps with the clock,
    or at the action 18 without it; the action 17 scores nothing, whatever the step.
    """

    observation_space = SimpleNamespace(shape=SHAPE)
    action_space = SimpleNamespace(n=19)

    def __init__(self) -> None:
        self._config: dict[str, Any] = {}
        self._time: int | None = None
        self._rng = np.random.default_rng(0)
        self.last_seen = np.zeros(SHAPE, np.uint8)
        self.was_closed = False
        self.configs: list[dict[str, Any]] = []

    @property
    def unwrapped(self) -> Game:
        return self

    def reset(self) -> np.ndarray:
        self.configs.append(dict(self._config))
        self._time = 0
        return self._look()

    def step(self, action: int) -> tuple[np.ndarray, np.float32, bool, dict[str, int]]:
        assert type(action) is int
        assert 0 <= action < 19
        assert self._time is not None, "reset() must be called before step()"
        self._time += 1
        score = 0 if action == 17 else self._time
        done = self._time == LENGTH or action == 18
        reward, seen = np.float32(score + 0.5), self._look()
        self._steps_left, self._time = LENGTH - self._time, None if done else self._time
        return seen, reward, done, {"score_reward": score}

    def observation(self) -> list[dict[str, int]]:
        return [{"steps_left": self._steps_left}]

    def close(self) -> None:
        self.was_closed = True

    def _look(self) -> np.ndarray:
        self.last_seen[:] = 255 * self._rng.integers(2, size=SHAPE)
        return self.last_seen  # written to again and again


@pytest.fixture(autouse=True)
def _scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "names", lambda: NAMES)


def make(
    games: list[Game],
    env_ids: range | None = None,
    seed: int = 0,
    num_action_repeats: int = 1,
    clock_ends_game: bool = False,
) -> FootballEnvironments:
    left = list(games)
    return FootballEnvironments(
        football.specs(football.Config()),
        lambda: left.pop(0),
        env_ids or range(len(games)),
        seed,
        num_action_repeats,
        clock_ends_game,
    )


def actions(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


@pytest.mark.parametrize(
    ("size", "shape"), [("default", (72, 96)), ("medium", (90, 120)), ("large", (108, 144))]
)
def test_specs(size, shape):
    """The sizes of the paper; an eighth of the bytes that the pixels have."""
    specs = football.specs(football.Config(smm_size=size))
    assert specs.observation == packed_bits((*shape, 16))
    assert specs.observation.num_bytes * 8 == shape[0] * shape[1] * 16
    assert specs.action.num_choices == 19


def test_description():
    assert football.describe(football.Config(reward_experiment="scoring,checkpoints")) == (
        "Google Research Football's 11_vs_11_easy_stochastic, Super Mini Map of 96x72, rewards for "
        "scoring and checkpoints, 1 frame(s) a step"
    )


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"game": "academy_empty_goal"}, "did you mean academy_empty_goal_close?"),
        ({"game": "11_vs_11"}, "did you mean 11_vs_11_stochastic or "),
        ({"game": "Pong"}, f"wanted one of {', '.join(NAMES)}"),
        ({"num_action_repeats": 0}, "--num_action_repeats=0: wanted at least 1; the default is 1"),
        ({"smm_size": "huge"}, r"--smm_size=huge: wanted one of default \| medium \| large"),
        (
            {"reward_experiment": "checkpoints"},
            r"--reward_experiment=checkpoints: wanted one of scoring \| scoring,checkpoints",
        ),
    ],
)
def test_options_that_are_refused(options, wanted):
    with pytest.raises(ValueError, match=wanted) as error:
        football.Config(**options)
    assert "\n" not in str(error.value)


def test_the_error_about_missing_football_says_what_installs_it(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "gfootball" else found(name)
    )
    with pytest.raises(
        ImportError,
        match="needs the package gfootball, which is not installed: type scripts/install_football",
    ):
        registry.load("football")


def test_rows_are_the_packed_maps():
    games = [Game(), Game()]
    environments = make(games)
    rows = environments.reset()
    for _ in range(20):
        assert rows.observation.dtype == np.uint8
        assert rows.observation.shape == (2, *environments.specs.observation.shape)
        for row, game in zip(rows.observation, games, strict=True):
            assert np.array_equal(np.unpackbits(row).reshape(SHAPE) * 255, game.last_seen)
        kept, copies = rows, [np.copy(leaf) for leaf in rows]
        rows = environments.step(actions(3, 18))
        for leaf, copy in zip(kept, copies, strict=True):  # case 101
            assert np.array_equal(leaf, copy)


@pytest.mark.parametrize(
    ("clock_ends_game", "last_action", "kind"),
    [
        (True, 17, StepType.TERMINATED),  # a match is over
        (False, 17, StepType.TRUNCATED),  # only the time of an exercise is up
        (False, 0, StepType.TERMINATED),  # a goal in its last step
    ],
)
def test_the_end_of_the_clock(clock_ends_game, last_action, kind):
    """Case 93: which of the two ends it is, of which a truncated one bootstraps."""
    environments = make([Game()], clock_ends_game=clock_ends_game)
    for _ in range(3):
        rows = environments.reset()
        assert rows.step_type[0] == StepType.FIRST
        assert rows.reward[0] == rows.raw_reward[0] == 0
        for t in range(1, LENGTH):
            rows = environments.step(actions(0))
            assert rows.step_type[0] == StepType.MID
            assert (rows.reward[0], rows.raw_reward[0]) == (t + 0.5, t)
        rows = environments.step(actions(last_action))
        assert rows.step_type[0] == kind


def test_environments_end_and_start_again_each_on_its_own():
    environments = make([Game(), Game()], clock_ends_game=True)
    rows = environments.reset()
    kinds = [rows.step_type]
    for _ in range(5):
        rows = environments.step(actions(0, 18))
        kinds.append(rows.step_type)
        assert (rows.reward[rows.step_type == StepType.FIRST] == 0).all()
    first, middle, end = StepType.FIRST, StepType.MID, StepType.TERMINATED
    assert np.transpose(kinds).tolist() == [
        [first, middle, middle, middle, middle, middle],
        [first, end, first, end, first, end],
    ]


def test_repeated_actions_add_up_and_stop_at_the_end():
    environments = make([Game()], num_action_repeats=4)
    environments.reset()
    rows = environments.step(actions(0))
    assert (rows.reward[0], rows.raw_reward[0]) == (1 + 2 + 3 + 4 + 4 / 2, 1 + 2 + 3 + 4)
    assert rows.step_type[0] == StepType.MID
    rows = environments.step(actions(0))
    assert (rows.reward[0], rows.raw_reward[0]) == (5 + 6 + 2 / 2, 5 + 6)
    assert rows.step_type[0] == StepType.TERMINATED


def test_every_episode_has_a_seed_of_its_own():
    """Cases 63 and 107: of the run's seed, the global id and the number of the episode only."""

    def engine_seeds(env_ids: range, seed: int) -> list[list[int]]:
        games = [Game() for _ in env_ids]
        environments = make(games, env_ids, seed)
        environments.reset()
        for _ in range(2 * 4 - 2):
            environments.step(np.full(len(games), 18, np.int32))
        for game in games:
            assert len(game.configs) == 4
            for config in game.configs:
                assert type(config["game_engine_random_seed"]) is int
                assert 0 <= config["game_engine_random_seed"] < 2**31
                odd = config["game_engine_random_seed"] % 2
                assert config["reverse_team_processing"] is bool(odd)
        return [[config["game_engine_random_seed"] for config in game.configs] for game in games]

    four = engine_seeds(range(4), 0)
    assert len({seed for episodes in four for seed in episodes}) == 16
    assert engine_seeds(range(2, 4), 0) == four[2:]
    assert not {*np.ravel(engine_seeds(range(4), 1))} & {*np.ravel(four)}


def test_a_crash_names_the_environment():
    """Case 64."""
    games = [Game(), Game()]
    environments = make(games, range(6, 8))
    environments.reset()
    games[1]._time = None
    with pytest.raises(RuntimeError, match=r"environment 7 failed in step\(\): AssertionError: re"):
        environments.step(actions(0, 0))


def test_another_map_than_wanted_is_refused_and_everything_closed():
    games = [Game(), Game()]
    games[0].observation_space = SimpleNamespace(shape=(72, 96, 4))
    with pytest.raises(
        RuntimeError,
        match=r"wanted observations \[72, 96, 16\] and 19 actions, saw \[72, 96, 4\] and 19",
    ):
        make(games)
    assert all(game.was_closed for game in games)
