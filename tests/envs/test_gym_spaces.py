import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from seed_rl.envs.gym.spaces import action_decoder, environment_specs, leaf_spaces
from seed_rl.specs import ArraySpec, flatten, map_nest


def specs_of(observation=None, action=None):
    class Env:
        observation_space = observation or spaces.Discrete(2)
        action_space = action or spaces.Discrete(2)

    return environment_specs(Env())


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Box(0, 255, (4, 5, 3), np.uint8), ArraySpec((4, 5, 3), "uint8", 0, 255)),
        (spaces.Box(-1, 1, (3,), np.float32), ArraySpec((3,), "float32", -1, 1)),
        (spaces.Box(-np.inf, np.inf, (3,), np.float64), ArraySpec((3,), "float32")),
        (spaces.Box(0, np.inf, (3,), np.float32), ArraySpec((3,), "float32")),
        (spaces.Box(np.float32([0, -1]), np.float32([1, 1])), ArraySpec((2,), "float32")),
        (spaces.Discrete(5), ArraySpec((), "int32", 0, 4)),
        (spaces.Discrete(5, start=-2), ArraySpec((), "int32", -2, 2)),
        (spaces.MultiDiscrete([3, 5]), ArraySpec((2,), "int32", 0, 4)),
        (spaces.MultiDiscrete([3, 5], start=[4, 1]), ArraySpec((2,), "int32", 1, 6)),
        (spaces.MultiBinary(4), ArraySpec((4,), "uint8", 0, 1)),
        (spaces.MultiBinary([2, 3]), ArraySpec((2, 3), "uint8", 0, 1)),
        (
            spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]),
            (ArraySpec((), "int32", 0, 1), ArraySpec((), "int32", 0, 2)),
        ),
        (
            spaces.Dict(b=spaces.Discrete(2), a=spaces.Dict(c=spaces.MultiBinary(1))),
            {"b": ArraySpec((), "int32", 0, 1), "a": {"c": ArraySpec((1,), "uint8", 0, 1)}},
        ),
    ],
)
def test_observation_specs(space, spec):
    assert specs_of(observation=space).observation == spec
    leaves = leaf_spaces(space)
    assert [leaf.shape for leaf in leaves] == [leaf.shape for leaf in flatten(spec)]


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Discrete(5, start=2), ArraySpec((), "int32", 0, 4)),
        (
            spaces.MultiDiscrete([2, 4, 3], start=[0, 7, 0]),
            tuple(ArraySpec((), "int32", 0, n) for n in (1, 3, 2)),
        ),
        (
            spaces.MultiDiscrete([[2, 3], [4, 5]]),
            tuple(ArraySpec((), "int32", 0, n) for n in (1, 2, 3, 4)),
        ),
        (spaces.MultiBinary(2), (ArraySpec((), "int32", 0, 1),) * 2),
        (spaces.Box(-2, 2, (3,), np.float64), ArraySpec((3,), "float32", -2, 2)),
        (
            spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (2,))]),
            (ArraySpec((), "int32", 0, 1), ArraySpec((2,), "float32", 0, 1)),
        ),
        (
            spaces.Dict(move=spaces.Discrete(3), jump=spaces.MultiBinary(1)),
            {"move": ArraySpec((), "int32", 0, 2), "jump": (ArraySpec((), "int32", 0, 1),)},
        ),
    ],
)
def test_action_specs_and_what_the_environment_gets(space, spec):
    assert specs_of(action=space).action == spec
    decode = action_decoder(space)
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = map_nest(
            lambda leaf: (
                rng.uniform(leaf.minimum, leaf.maximum + 1, (4, *leaf.shape)).astype(leaf.dtype)
                if leaf.dtype == "int32"
                else rng.uniform(leaf.minimum, leaf.maximum, (4, *leaf.shape)).astype(leaf.dtype)
            ),
            spec,
        )
        for i in range(4):
            assert space.contains(decode(action, i)), decode(action, i)


def test_decoding_adds_the_start_and_keeps_the_order():
    assert action_decoder(spaces.Discrete(5, start=2))(np.array([0, 3]), 1) == 5
    columns = tuple(np.array([0, value], np.int32) for value in (1, 2, 3, 4))
    decoded = action_decoder(spaces.MultiDiscrete([[2, 3], [4, 5]]))(columns, 1)
    assert decoded.tolist() == [[1, 2], [3, 4]]


def test_the_environment_may_write_to_its_action():
    actions = np.zeros((2, 3), np.float32)
    action_decoder(spaces.Box(-1, 1, (3,)))(actions, 0)[:] = 1
    assert not actions.any()


def test_older_gym_spaces_are_told_by_their_names():
    """Case 97: gym's classes are not gymnasium's, and Discrete had no start."""

    class Space:
        def __init__(self, **attributes):
            vars(self).update(attributes)

    Box, Discrete = type("Box", (Space,), {}), type("Discrete", (Space,), {})  # noqa: N806
    Dict = type("Dict", (Space,), {})  # noqa: N806
    box = Box(low=np.zeros(2), high=np.ones(2), shape=(2,), dtype=np.dtype(np.float64))
    space = Dict(spaces={"x": box, "n": Discrete(n=3, shape=(), dtype=np.dtype(np.int64))})
    assert specs_of(observation=space, action=Discrete(n=4)).observation == {
        "x": ArraySpec((2,), "float32", 0, 1),
        "n": ArraySpec((), "int32", 0, 2),
    }
    assert action_decoder(Discrete(n=4))(np.array([3]), 0) == 3


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2))])
def test_other_spaces_are_refused(space):
    wanted = "wanted a space of a kind in Box, Discrete, MultiDiscrete, MultiBinary, Tuple, Dict"
    with pytest.raises(ValueError, match=wanted):
        specs_of(observation=gymnasium.spaces.Tuple([space]))
    with pytest.raises(ValueError, match=wanted):
        specs_of(action=space)
