"""The adapter from single environments, of gymnasium's API and of the older ones."""

import logging
import multiprocessing
import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from seed_rl.envs import gym
from seed_rl.envs.gym.environments import GymEnvironments
from seed_rl.specs import ArraySpec, flatten
from seed_rl.types import StepType


class Counter(gymnasium.Env):
    """Shows its step in an array that it writes to again and again; rewards are the actions."""

    def __init__(self, length=5, truncate=False, observation=None, reward=None, space=None):
        self.observation_space = space or spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(100)
        self.length, self.truncate = length, truncate
        self.observation, self.reward = observation, reward
        self.array = np.zeros(2, np.float32)
        self.closed = False

    def see(self):
        self.array[:] = self.t
        return self.array if self.observation is None else self.observation

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.see(), {}

    def step(self, action):
        self.t += 1
        reward = float(action) if self.reward is None else self.reward
        over = self.t == self.length
        return self.see(), reward, over and not self.truncate, over and self.truncate, {}

    def close(self):
        self.closed = True


class OldCounter:
    """The API of gym before 0.26: seed(), reset() -> observation, four values a step."""

    def __init__(self, length=5, info=None):
        self.inner = Counter(length)
        self.observation_space = self.inner.observation_space
        self.action_space = self.inner.action_space
        self.length, self.info = length, info or {}
        self.seeds = []

    def seed(self, seed=None):
        self.seeds.append(seed)

    def reset(self):
        return self.inner.reset()[0]

    def step(self, action):
        observation, reward, done, _, _ = self.inner.step(action)
        return observation, reward, done, self.info if done else {}

    def close(self):
        pass


def play(environments, steps):
    n = len(environments.reset().step_type)
    return [environments.step(np.full(n, t, np.int32)) for t in range(1, steps + 1)]


@pytest.mark.parametrize(
    ("make", "end"),
    [
        (Counter, StepType.TERMINATED),
        (lambda: Counter(truncate=True), StepType.TRUNCATED),
        (OldCounter, StepType.TERMINATED),
        (lambda: OldCounter(info={"TimeLimit.truncated": True}), StepType.TRUNCATED),
        (lambda: OldCounter(info={"TimeLimit.truncated": False}), StepType.TERMINATED),
    ],
)
def test_both_apis_end_and_reset_alike(make, end):
    """Case 97: four and five values a step; the reset is a step of its own, without reward."""
    environments = GymEnvironments(make, range(2), seed=0)
    first = environments.reset()
    assert (first.step_type == StepType.FIRST).all()
    assert not first.observation.any()
    assert not first.reward.any()
    rows = play(environments, 12)
    kinds = [StepType.MID] * 4 + [end, StepType.FIRST]
    assert [row.step_type.tolist() for row in rows] == [[kind] * 2 for kind in kinds * 2]
    # The action of step 6 and 12 is ignored.
    assert [row.reward[1] for row in rows] == [1, 2, 3, 4, 5, 0, 7, 8, 9, 10, 11, 0]
    assert [row.observation[1, 0] for row in rows] == [1, 2, 3, 4, 5, 0] * 2
    for row in rows:
        assert np.array_equal(row.reward, row.raw_reward)


def test_the_real_gym_plays_as_gymnasium_does():
    """Cases 63, 93 and 97: by its version five or four values a step, reset(seed=...) or seed()."""
    gym_package = pytest.importorskip("gym", reason="type pip install gym")

    def make_with(package):
        return lambda: package.make("CartPole-v1", max_episode_steps=15, disable_env_checker=True)

    old = GymEnvironments(make_with(gym_package), range(3), seed=5)
    new = GymEnvironments(make_with(gymnasium), range(3), seed=5)
    rows, kinds = (old.reset(), new.reset()), []
    for t in range(150):
        for leaf, other in zip(*rows, strict=True):
            np.testing.assert_allclose(leaf, other, atol=1e-6)
        kinds.append(rows[0].step_type)
        action = np.array([t // 2 % 2, t % 2, 1], np.int32)
        rows = old.step(action), new.step(action)
    assert np.bincount(np.ravel(kinds), minlength=4).min() > 4
    old.close()
    new.close()


def test_wrappers_of_older_environments_pass_on_seeds():
    """Case 63: as in gym 0.26, whose wrappers take any keywords."""

    class Wrapper:
        def __init__(self):
            self.unwrapped = self.env = Counter()
            self.observation_space = self.env.observation_space
            self.action_space = self.env.action_space
            self.seeds = []

        def reset(self, **kwargs):
            self.seeds.append(kwargs)
            return self.env.reset(**kwargs)

    made = []
    environments = GymEnvironments(lambda: made.append(Wrapper()) or made[-1], range(2), 5)
    environments.reset()
    environments.reset()
    assert [env.seeds[1] for env in made] == [{}, {}]
    assert made[0].seeds[0]["seed"] != made[1].seeds[0]["seed"]


def test_an_environment_both_terminated_and_truncated_is_terminated():
    class Both(Counter):
        def step(self, action):
            return *super().step(action)[:2], True, True, {}

    rows = play(GymEnvironments(Both, [0], 0), 1)
    assert rows[0].step_type[0] == StepType.TERMINATED


def test_the_time_limit_of_gymnasium_truncates():
    """Case 93."""
    environments = GymEnvironments(
        lambda: gymnasium.wrappers.TimeLimit(Counter(length=10**9), 7), [0], 0
    )
    kinds = [row.step_type[0] for row in play(environments, 8)]
    assert kinds == [StepType.MID] * 6 + [StepType.TRUNCATED, StepType.FIRST]


def test_transitions_are_never_written_to_again():
    """Case 101: though the environment reuses one array."""
    environments = GymEnvironments(Counter, range(3), 0)
    rows = environments.reset()
    for t in range(12):
        copies = [np.copy(leaf) for leaf in rows]
        after = environments.step(np.full(3, t, np.int32)) if t < 11 else environments.reset()
        for leaf, copy in zip(rows, copies, strict=True):
            assert np.array_equal(leaf, copy)
        rows = after


@pytest.mark.parametrize("game", ["CartPole-v1", "Acrobot-v1"])
def test_seeds(game):
    """Case 63: the first 20 resets of 8 environments with one seed, in one process or not."""

    def first_observations(env_ids, seed, resets=20):
        environments = gym.make(gym.Config(game), env_ids, seed)
        rows = [environments.reset()]
        while len(rows) < resets:
            rows.append(environments.reset())
        environments.close()
        return np.stack([row.observation for row in rows], axis=1)

    eight = first_observations(range(8), 0)
    starts = eight.reshape(-1, eight.shape[-1])
    assert len(np.unique(starts, axis=0)) == len(starts)
    assert np.array_equal(eight, first_observations(range(8), 0))
    assert np.array_equal(eight[4:], first_observations(range(4, 8), 0))
    assert not np.array_equal(eight[:, 0], first_observations(range(8), 1, 1)[:, 0])


def test_older_environments_are_seeded_once():
    made = []

    def make():
        made.append(OldCounter())
        return made[-1]

    play(GymEnvironments(make, [4, 5], seed=3), 20)
    assert [len(env.seeds) for env in made] == [1, 1]
    assert made[0].seeds != made[1].seeds
    assert all(type(env.seeds[0]) is int for env in made)


def test_an_environment_without_seeds_plays_with_one_warning(caplog):
    class Seedless(OldCounter):
        seed = property()

    environments = GymEnvironments(Seedless, range(3), seed=3)
    with caplog.at_level(logging.WARNING):
        play(environments, 20)
    (record,) = caplog.records
    assert "class Seedless are not seeded: they have neither reset(seed=...) nor" in record.message


@pytest.mark.parametrize(
    "reward", [1.5, np.float32(1.5), np.float64(1.5), 2, np.int64(2), np.uint8(2)]
)
def test_any_number_is_a_reward(reward, caplog):
    """Case 68."""
    with caplog.at_level(logging.WARNING):
        rows = play(GymEnvironments(lambda: Counter(reward=reward), range(2), 0), 3)
    assert rows[0].reward.dtype == np.float32
    assert rows[0].reward.tolist() == [reward, reward]
    assert not caplog.records


@pytest.mark.parametrize(
    ("reward", "number"), [(True, 1), (np.True_, 1), (np.array([1.5]), 1.5), (np.array(3), 3)]
)
def test_what_is_nearly_a_number_is_cast_with_one_warning(reward, number, caplog):
    """Case 68."""
    with caplog.at_level(logging.WARNING):
        rows = play(GymEnvironments(lambda: Counter(reward=reward), range(2), 0), 9)
    assert rows[0].reward.tolist() == [number, number]
    assert [record.message.split(":")[0] for record in caplog.records] == ["reward"]


@pytest.mark.parametrize("reward", ["none", object(), [1, 2], {}, 1j])
def test_other_rewards_are_refused(reward):
    """Case 68."""
    environments = GymEnvironments(lambda: Counter(reward=reward), [7], 0)
    with pytest.raises(ValueError, match=r"environment 7: reward: wanted a number, saw"):
        play(environments, 1)


IMAGE = spaces.Box(0, 255, (2,), np.uint8)
FLAGS = spaces.MultiBinary(2)


@pytest.mark.parametrize(
    ("space", "observation", "dtype", "warns"),
    [
        (None, np.array([0.5, 2], np.float64), "float32", True),
        (None, [0.5, 2.0], "float32", True),
        (None, np.array([1, 2]), "float32", True),
        (None, np.array([True, False]), "float32", True),
        (IMAGE, np.array([1, 255], np.int64), "uint8", True),
        (IMAGE, np.array([1, 255], np.float32), "uint8", True),
        (FLAGS, np.array([True, False]), "uint8", True),
        (FLAGS, np.array([1, 0], np.int8), "uint8", False),  # as the space says
        (spaces.Box(-9, 9, (2,), np.float64), np.array([0.5, 2]), "float32", False),
        (spaces.Discrete(9), np.int64(3), "int32", False),
        (spaces.Discrete(9), 3, "int32", False),
    ],
)
def test_observations_are_cast_with_at_most_one_warning(space, observation, dtype, warns, caplog):
    """Case 68."""
    make = lambda: Counter(observation=observation, space=space)  # noqa: E731
    with caplog.at_level(logging.WARNING):
        rows = play(GymEnvironments(make, range(2), 0), 9)
    assert rows[0].observation.dtype == dtype
    assert np.array_equal(rows[0].observation[1], np.asarray(observation))
    fields = [record.message.split(":")[0] for record in caplog.records]
    assert fields == (["observation"] if warns else [])


@pytest.mark.parametrize(
    ("space", "observation", "wanted", "seen"),
    [
        (None, np.zeros(3, np.float32), "float32[2]", "float32[3]"),
        (None, np.float32(1), "float32[2]", "float32[]"),
        (None, object(), "float32[2]", "object[]"),
        (None, np.array(["a", "b"]), "float32[2]", "str32[2]"),
        (IMAGE, np.array([1, 256]), "uint8[2] in [0, 255]", "int64[2] from 1 to 256"),
        (IMAGE, np.array([0.5, 1]), "uint8[2] in [0, 255]", "float64[2]"),
        (spaces.Dict(a=IMAGE), {"b": np.zeros(2, np.uint8)}, "uint8[2] in [0, 255]", "'b'"),
        (spaces.Dict(a=IMAGE), np.zeros(2, np.uint8), "uint8[2] in [0, 255]", "array"),
        (spaces.Tuple([IMAGE, IMAGE]), (np.zeros(2, np.uint8),), "uint8[2]", "array"),
    ],
)
def test_observations_outside_the_space_are_refused_with_both_specs(
    space, observation, wanted, seen
):
    """Cases 25 and 68."""
    environments = GymEnvironments(lambda: Counter(observation=observation, space=space), [7], 0)
    with pytest.raises(ValueError, match=r"^environment 7: observation") as error:
        environments.reset()
    assert f"wanted {wanted}" in str(error.value)
    assert seen in str(error.value).split("saw")[1]


@pytest.mark.parametrize(
    ("space", "observation", "seen"),
    [
        (spaces.Discrete(4), 4, "int32[] in [0, 3], as observation_space says, saw 4"),
        (spaces.Discrete(4, start=2), 1, "int32[] in [2, 5], as observation_space says, saw 1"),
        (
            spaces.MultiDiscrete([2, 3]),
            np.array([1, 7]),
            "int32[2] in [0, 2], as observation_space says, saw 7",
        ),
        (FLAGS, np.array([2, 0], np.int8), "uint8[2] in [0, 1], as observation_space says, saw 2"),
    ],
)
def test_choices_that_there_are_not_are_refused(space, observation, seen):
    """Case 68: a network would look up nothing, or something else."""
    environments = GymEnvironments(
        lambda: Counter(observation=observation, space=space), [7, 8], seed=0
    )
    with pytest.raises(ValueError) as error:
        environments.reset()
    assert str(error.value) == f"environment 7: observation: wanted {seen}"


def test_the_error_names_the_field_of_a_nest():
    space = spaces.Dict(eye=spaces.Dict(left=IMAGE))
    observation = {"eye": {"left": np.zeros(5, np.uint8)}}
    environments = GymEnvironments(lambda: Counter(observation=observation, space=space), [7], 0)
    with pytest.raises(ValueError, match="environment 7: observation/eye/left: wanted"):
        environments.reset()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(z=IMAGE, a=spaces.Tuple([spaces.Discrete(7), FLAGS])),
        spaces.Tuple([spaces.Dict(x=IMAGE), spaces.Discrete(7)]),
        spaces.Tuple([spaces.Discrete(7), spaces.Dict(x=IMAGE)]),
    ],
)
@pytest.mark.parametrize("has_info", [True, False])
def test_nests(space, has_info):
    """Also a pair that ends in a dict, as (observation, info) does."""
    seen = []

    class Nested:
        observation_space, action_space = space, spaces.Discrete(2)

        def reset(self, seed=None):
            space.seed(seed)
            seen.append(space.sample())
            return (seen[-1], {}) if has_info else seen[-1]

        def step(self, action):
            seen.append(space.sample())
            return seen[-1], 0.0, False, False, {}

        def close(self):
            pass

    environments = GymEnvironments(Nested, [0], 0)
    rows = [environments.reset(), *(environments.step(np.zeros(1, np.int32)) for _ in range(5))]
    for row, observation in zip(rows, seen, strict=True):
        leaves = zip(flatten(row.observation), flatten(observation), strict=True)
        assert all(np.array_equal(got[0], wanted) for got, wanted in leaves)


def test_a_failing_environment_is_named():
    class Failing(Counter):
        def step(self, action):
            if action == 3:
                raise ZeroDivisionError("dividing by the number of coins")
            return super().step(action)

    environments = GymEnvironments(Failing, [5, 6], 0)
    environments.reset()
    environments.step(np.array([1, 2], np.int32))
    wanted = r"environment 6 failed in step\(\): ZeroDivisionError: dividing by the number of coins"
    with pytest.raises(RuntimeError, match=wanted) as error:
        environments.step(np.array([1, 3], np.int32))
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_an_environment_that_fails_at_reset_is_named():
    class Failing(Counter):
        def reset(self, *, seed=None, options=None):
            raise OSError("no display")

    with pytest.raises(RuntimeError, match=r"environment 5 failed in reset\(\): OSError: no dis"):
        GymEnvironments(Failing, [5], 0).reset()


@pytest.mark.parametrize("result", [None, (1, 2, 3), [1, 2, 3, 4, 5]])
def test_a_step_of_neither_api_is_refused(result):
    """Case 97."""

    class Odd(Counter):
        def step(self, action):
            return result

    with pytest.raises(ValueError, match=r"environment 5: step\(\) wanted to return .*, saw"):
        play(GymEnvironments(Odd, [5], 0), 1)


def test_environments_are_closed_also_when_one_cannot_be_made():
    made = []

    def make():
        if len(made) == 2:
            raise OSError("out of licences")
        made.append(Counter())
        return made[-1]

    with pytest.raises(OSError, match="out of licences"):
        GymEnvironments(make, range(3), 0)
    assert [env.closed for env in made] == [True, True]
    made.clear()
    environments = GymEnvironments(make, range(2), 0)
    environments.close()
    environments.close()
    assert [env.closed for env in made] == [True, True]


class Forking(Counter):
    """Case 112: starts processes of both kinds in its constructor and in each step."""

    def __init__(self):
        super().__init__()
        self.ask()

    def ask(self) -> None:
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        child = multiprocessing.get_context("fork").Process(target=os.getpid)
        child.start()
        child.join(20)
        assert child.exitcode == 0

    def step(self, action):
        self.ask()
        return super().step(action)


def test_environments_may_start_processes():
    """Case 112."""
    rows = play(GymEnvironments(Forking, range(2), 0), 3)
    assert rows[-1].observation[:, 0].tolist() == [3, 3]


def test_cartpole():
    config = gym.Config()
    assert gym.specs(config).observation == ArraySpec((4,), "float32")
    assert gym.describe(config) == "gymnasium's CartPole-v1"
    environments = gym.make(config, range(4), 0)
    environments.reset()
    rng = np.random.default_rng(0)
    kinds = [environments.step(rng.integers(2, size=4)).step_type for _ in range(300)]
    environments.close()
    assert (np.array(kinds) == StepType.TERMINATED).sum() > 20


def test_nobody_looks_at_each_step_whether_there_was_a_reset():
    """The adapter never steps before; all else of what gymnasium.make() makes is left as it is."""
    made = gymnasium.wrappers.RescaleObservation(
        gymnasium.make("MountainCar-v0", disable_env_checker=True), np.float32(0), np.float32(1)
    )
    env = gym.without_order_checks(made)
    names = []
    while isinstance(env, gymnasium.Wrapper):
        names.append(type(env).__name__)
        env = env.env
    assert names == ["RescaleObservation", "TimeLimit"]
    bare = gymnasium.make("MountainCar-v0", disable_env_checker=True).unwrapped
    assert gym.without_order_checks(bare) is bare
    environments = gym.make(gym.Config("MountainCar-v0"), [0], 0)
    environments.reset()
    kinds = [environments.step(np.zeros(1, np.int32)).step_type[0] for _ in range(201)]
    assert kinds == [StepType.MID] * 199 + [StepType.TRUNCATED, StepType.FIRST]


def test_unknown_ids_are_refused_with_what_to_type():
    with pytest.raises(ValueError, match=r"--game=CartPool-v1: .*'module:CartPool-v1'"):
        gym.specs(gym.Config("CartPool-v1"))


@pytest.mark.parametrize("game", ["ale_py:ALE/Pong-v5", "ale_py:Pong-v4"])
def test_atari_ids_that_skip_frames_are_refused(game):
    """Case 90."""
    with pytest.raises(ValueError, match=r"wanted a frame skip of 1.*--environment=atari"):
        gym.specs(gym.Config(game))


def test_atari_ids_that_skip_no_frames_are_played():
    """Case 90."""
    specs = gym.specs(gym.Config("ale_py:PongNoFrameskip-v4"))
    assert specs.observation == ArraySpec((210, 160, 3), "uint8", 0, 255)
