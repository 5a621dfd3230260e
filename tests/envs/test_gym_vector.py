"""The adapter from vector environments: gymnasium's own against single ones, and envpool's."""

import copy
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from seed_rl.envs import gym, registry
from seed_rl.envs.gym.environments import GymEnvironments
from seed_rl.envs.gym.factory import FactoryFamily
from seed_rl.envs.gym.vector import VectorEnvironments
from seed_rl.specs import ArraySpec, flatten, map_nest
from seed_rl.types import StepType

KEYS = spaces.Dict(
    eye=spaces.Box(0, 255, (2, 3), np.uint8),
    pose=spaces.Tuple([spaces.Box(-9, 9, (2,), np.float64), spaces.Discrete(5, start=2)]),
)
HANDS = spaces.Dict(
    grip=spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 4])]),
    push=spaces.Box(-2, 6, (2,), np.float64),
)


class Hands(gymnasium.Env):
    """Observes random nests; is rewarded by what it was made to do; ends either way."""

    observation_space, action_space = KEYS, HANDS

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space = copy.deepcopy(KEYS)
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = action["grip"][0] + 10 * action["grip"][1].sum() + 100 * action["push"].sum()
        end = self.np_random.random()
        return self.observation_space.sample(), float(reward), end < 0.1, end > 0.9, {}


def make_cart_pole():
    return gymnasium.make("CartPole-v1", max_episode_steps=15)


def vectors(make_env, kind=SyncVectorEnv, **options):
    """A function that makes vectors of these environments."""
    return lambda seeds: kind([make_env] * len(seeds), **options)


def random_actions(spec, n, rng):
    return map_nest(
        lambda leaf: (
            rng.integers(0, leaf.maximum + 1, (n, *leaf.shape), np.int32)
            if leaf.dtype == "int32"
            else rng.uniform(-1, 1, (n, *leaf.shape)).astype(np.float32)
        ),
        spec,
    )


def assert_same(rows, wanted):
    assert [leaf.dtype for leaf in flatten(rows)] == [leaf.dtype for leaf in flatten(wanted)]
    for leaf, other in zip(flatten(rows), flatten(wanted), strict=True):
        np.testing.assert_array_equal(leaf, other)


@pytest.mark.parametrize(
    ("make_env", "kind", "options"),
    [
        (make_cart_pole, SyncVectorEnv, {}),
        (make_cart_pole, SyncVectorEnv, {"copy": False}),
        (make_cart_pole, AsyncVectorEnv, {}),
        (make_cart_pole, AsyncVectorEnv, {"copy": False}),
        (Hands, SyncVectorEnv, {"copy": False}),
        (Hands, AsyncVectorEnv, {"shared_memory": False}),
    ],
)
def test_equals_single_environments_step_by_step(make_env, kind, options):
    """Cases 93 and 97: observations, rewards, both ends, resets and seeds, of 200 steps."""
    vector = VectorEnvironments(vectors(make_env, kind, **options), False, range(4, 7), seed=1)
    single = GymEnvironments(make_env, range(4, 7), seed=1)
    assert vector.specs == single.specs
    assert_same(vector.reset(), single.reset())
    rng = np.random.default_rng(0)
    kinds = []
    for _ in range(200):
        action = random_actions(single.specs.action, 3, rng)
        rows = vector.step(action)
        assert_same(rows, single.step(action))
        kinds.append(rows.step_type)
    assert_same(vector.reset(), single.reset())  # also in the middle of episodes
    vector.close()
    vector.close()
    single.close()
    counts = np.bincount(np.ravel(kinds), minlength=4)
    assert counts.min() > 10, counts


def test_transitions_are_never_written_to_again():
    """Case 101: though gymnasium writes to the same arrays again and again."""
    environments = VectorEnvironments(vectors(Hands, copy=False), False, range(3), 0)
    rows, rng = environments.reset(), np.random.default_rng(0)
    for _ in range(20):
        kept, copies = flatten(rows), [leaf.copy() for leaf in flatten(rows)]
        rows = environments.step(random_actions(environments.specs.action, 3, rng))
        assert all(map(np.array_equal, kept, copies))


class Vector(gymnasium.vector.VectorEnv):
    """One of a user's own, which counts to 3 in each environment, and is paid at resets, too."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    single_observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    single_action_space = spaces.Discrete(2)
    observation_dtype, reward_shape = np.float32, ()

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.t = np.zeros(num_envs)
        self.seeds = []

    def see(self):
        return self.t[:, None].astype(self.observation_dtype)

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.t[:] = 0
        return self.see(), {}

    def step(self, action):
        if action[0] == 1:
            raise OSError("the pool is dry")
        self.t = (self.t + 1) % 4
        reward = np.ones((self.num_envs, *self.reward_shape))
        return self.see(), reward, self.t == 3, np.zeros(self.num_envs, bool), {}


def test_columns_are_whole_whatever_the_vector_returns():
    """In C order, as the wire copies them: CartPole's vector returns a transposed array."""
    environments = VectorEnvironments(
        lambda seeds: gymnasium.make_vec("CartPole-v1", 3), False, [0, 1, 2], 0
    )
    environments.reset()
    for _ in range(40):
        rows = environments.step(np.zeros(3, np.int32))
        assert all(leaf.flags.c_contiguous and leaf.flags.writeable for leaf in flatten(rows))


def test_a_reset_pays_nothing():
    environments = FactoryFamily("a", Vector).make(None, range(2), 0)
    environments.reset()
    rows = [environments.step(np.zeros(2, np.int32)) for _ in range(8)]
    assert [row.step_type[1] for row in rows] == [1, 1, 2, 0] * 2
    assert [row.reward[1] for row in rows] == [1, 1, 1, 0] * 2
    assert rows[0].reward.dtype == np.float32


def test_seeds():
    """Case 63: each environment's own where that can be; otherwise that of the first."""
    made = []

    def make(num_envs):
        made.append(Vector(num_envs))
        return made[-1]

    def make_seeded(num_envs, seeds):
        made.append(Vector(num_envs))
        made[-1].given = seeds
        return made[-1]

    for factory in (make, make_seeded):
        for env_ids in (range(2), range(2, 4)):
            environments = FactoryFamily("a", factory).make(None, env_ids, seed=5)
            environments.reset()
            environments.reset()
    first, second, seeded, also_seeded = made
    assert type(first.seeds[0]) is type(second.seeds[0]) is int
    assert first.seeds[0] != second.seeds[0]
    assert first.seeds[1] is second.seeds[1] is None
    assert seeded.seeds == also_seeded.seeds == [None, None]
    assert [seeded.given[0], also_seeded.given[0]] == [first.seeds[0], second.seeds[0]]
    assert len({*seeded.given, *also_seeded.given}) == 4


def single(num_envs):
    return gymnasium.make("CartPole-v1")


def too_many(num_envs):
    return Vector(num_envs + 1)


def same_step(num_envs):
    return gymnasium.make_vec(
        "CartPole-v1",
        num_envs=num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
    )


def disabled(num_envs):
    return SyncVectorEnv([make_cart_pole] * num_envs, autoreset_mode="Disabled")


def unsaid(num_envs):
    vector = Vector(num_envs)
    vector.metadata = {}
    return vector


def without_num_envs():
    return Vector(4)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (single, "wanted a gymnasium.vector.VectorEnv; a function that makes single environments"),
        (too_many, "saw num_envs=2 in"),
        (same_step, "metadata['autoreset_mode'] is AutoresetMode.SAME_STEP, wanted Autoreset"),
        (disabled, "metadata['autoreset_mode'] is AutoresetMode.DISABLED, wanted AutoresetMode"),
        (unsaid, "metadata['autoreset_mode'] is None, wanted AutoresetMode.NEXT_STEP"),
        (without_num_envs, "wanted a single one: let the function take num_envs, as in make(num_"),
    ],
)
def test_what_cannot_be_played_right_is_refused(factory, words):
    """Those that reset within a step are ahead of the row that would show their first picture."""
    with pytest.raises(ValueError) as error:
        FactoryFamily("a", factory).specs(None)
    assert words in str(error.value)
    with pytest.raises(ValueError):
        FactoryFamily("a", factory).make(None, [0], 0)


def test_what_the_refusal_advises_works():
    def next_step(num_envs):
        return gymnasium.make_vec(
            "CartPole-v1",
            num_envs=num_envs,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": "NextStep"},
        )

    FactoryFamily("a", next_step).make(None, [0], 0).close()
    VectorEnvironments(vectors(make_cart_pole, autoreset_mode="NextStep"), False, [0], 0).close()


def test_a_failing_vector_is_named():
    environments = FactoryFamily("a", Vector).make(None, range(4, 8), 0)
    environments.reset()
    with pytest.raises(RuntimeError, match=r"environments 4\.\.7 failed in step\(\): OSError: the"):
        environments.step(np.ones(4, np.int32))


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"observation_dtype": str}, r"observation: wanted float32\[4, 1\], .* saw str\d*\[4, 1\]"),
        ({"reward_shape": (2,)}, r"reward: wanted an array \[4\], saw \[4, 2\]"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_was_wanted(attributes, words):
    """Cases 25 and 68."""
    wrong = type("Wrong", (Vector,), attributes)
    environments = FactoryFamily("a", wrong).make(None, range(4, 8), 0)

    def play():
        environments.reset()
        environments.step(np.zeros(4, np.int32))

    with pytest.raises(ValueError, match=rf"^environments 4\.\.7: {words}"):
        play()


def test_ids_that_only_make_vectors(monkeypatch):
    """The gym family makes those as they are; others are made one by one."""
    monkeypatch.setattr(gymnasium.envs.registration, "registry", {**gymnasium.registry})
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    gymnasium.register(
        "OnlyVector-v0",
        vector_entry_point="gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv",
        max_episode_steps=20,
    )
    config = gym.Config("OnlyVector-v0")
    assert gym.specs(config).observation == ArraySpec((4,), "float32")
    environments = gym.make(config, range(8), 0)
    assert isinstance(environments, VectorEnvironments)
    rows = [environments.reset()]
    rows += [environments.step(np.arange(8) % 2) for _ in range(40)]
    kinds = np.array([row.step_type for row in rows])
    assert ((kinds[1:] == StepType.FIRST) == (kinds[:-1] >= StepType.TERMINATED)).all()
    assert (kinds == StepType.TERMINATED).sum() > 8
    starts = np.concatenate([row.observation[row.step_type == StepType.FIRST] for row in rows])
    assert np.abs(starts).max() <= 0.05
    assert len(np.unique(starts, axis=0)) == len(starts) > 16
    environments.close()
    assert isinstance(gym.make(gym.Config(), [0], 0), GymEnvironments)


ENVPOOL = """
import envpool

def make(num_envs, seeds):
    return envpool.make(
        "CartPole-v1", env_type="gymnasium", num_envs=num_envs, seed=seeds, max_episode_steps=20
    )

def make_unseeded(num_envs):
    return envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs)

def make_pendulum(num_envs, seeds):
    return envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=num_envs, seed=[7] * num_envs)
"""


@pytest.fixture
def my_envpool(tmp_path, monkeypatch):
    pytest.importorskip("envpool", reason="type pip install envpool")
    (tmp_path / "my_envpool.py").write_text(ENVPOOL)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_envpool", None)


@pytest.mark.usefixtures("my_envpool")
def test_envpool():
    """Cases 63, 93 and 101, with the real one."""
    family = registry.load("my_envpool:make")

    def play(env_ids, seed, steps=100):
        environments = family.make(family.Config(), env_ids, seed)
        rows = [environments.reset()]
        for t in range(steps):
            copies = [np.copy(leaf) for leaf in rows[-1]]
            # An unsteady hand: some episodes end by themselves, some by the limit.
            lean = rows[-1].observation[:, 2] + rows[-1].observation[:, 3] > 0
            rows.append(environments.step(np.where(t % 40 < 20, lean, 0).astype(np.int32)))
            assert all(map(np.array_equal, rows[-2], copies))
        environments.close()
        return rows

    rows = play(range(4), seed=3)
    assert rows[0].observation.dtype == np.float32
    kinds = np.array([row.step_type for row in rows])
    rewards = np.array([row.reward for row in rows])
    assert ((kinds[1:] == StepType.FIRST) == (kinds[:-1] >= StepType.TERMINATED)).all()
    assert np.bincount(kinds.ravel(), minlength=4).min() >= 4
    assert ((rewards == 0) == (kinds == StepType.FIRST)).all()
    for row in rows:
        start = np.abs(row.observation).max(axis=1) <= 0.05
        assert start[row.step_type == StepType.FIRST].all()
        upright = np.abs(row.observation[:, 2]) < 12 * np.pi / 180
        assert upright[row.step_type == StepType.TRUNCATED].all()
        assert not upright[row.step_type == StepType.TERMINATED].any()

    assert len(np.unique(rows[0].observation, axis=0)) == 4
    for part, env_ids in ((slice(0, 4), range(4)), (slice(2, 4), range(2, 4))):
        for row, again in zip(rows, play(env_ids, seed=3), strict=True):
            assert all(map(np.array_equal, (leaf[part] for leaf in row), again))
    assert not np.array_equal(rows[0].observation, play(range(4), 4, 0)[0].observation)


@pytest.mark.usefixtures("my_envpool")
def test_envpool_without_seeds_is_refused():
    """Case 63: it ignores those of reset(), so that all actors would play the same episodes."""
    family = registry.load("my_envpool:make_unseeded")
    with pytest.raises(ValueError, match="envpool takes no seeds after it was made: let the fun"):
        family.make(family.Config(), range(2), 0)


@pytest.mark.usefixtures("my_envpool")
def test_envpool_with_continuous_actions():
    family = registry.load("my_envpool:make_pendulum")
    assert family.specs(family.Config()).action == ArraySpec((1,), "float32", -1, 1)
    environments = family.make(family.Config(), range(2), 0)
    before = environments.reset().observation
    rows = environments.step(np.float32([[1], [-0.5]]))
    # Both start alike, and gain 3 * torque * 0.05 of speed besides what gravity does.
    assert np.array_equal(before[0], before[1])
    gained = rows.observation[:, 2] - before[:, 2]
    assert gained[0] - gained[1] == pytest.approx(3 * (2 - -1) * 0.05, rel=1e-4)
    assert rows.reward.dtype == np.float32
    environments.close()
