import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from seed_rl.envs.gym.spaces import (
    action_decoder,
    action_splitter,
    environment_specs,
    leaf_spaces,
)
from seed_rl.specs import ArraySpec, flatten, map_nest


def specs_of(observation=None, action=None):
    # Not `or`: some spaces have a length of 0.
    both = (spaces.Discrete(2) if space is None else space for space in (observation, action))
    return environment_specs(*both)


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Box(0, 255, (4, 5, 3), np.uint8), ArraySpec((4, 5, 3), "uint8", 0, 255)),
        (spaces.Box(-1, 1, (3,), np.float32), ArraySpec((3,), "float32", -1, 1)),
        (spaces.Box(-np.inf, np.inf, (3,), np.float64), ArraySpec((3,), "float32")),
        (spaces.Box(0, np.inf, (3,), np.float32), ArraySpec((3,), "float32")),
        (
            spaces.Box(np.float32([0, -1]), np.float32([1, 2])),
            ArraySpec((2,), "float32", -1, 2, element_bounds=((0, 1), (-1, 2))),
        ),
        (
            spaces.Box(np.float32([[-8, 0]]), np.float32([[8, 0.5]])),
            ArraySpec((1, 2), "float32", -8, 8, element_bounds=((-8, 8), (0, 0.5))),
        ),
        (spaces.Box(np.float32([0, -1]), np.float32([1, np.inf])), ArraySpec((2,), "float32")),
        (spaces.Box(np.float32([-3e38, -1]), np.float32([3e38, 1])), ArraySpec((2,), "float32")),
        (
            spaces.Box(np.array([0, 5]), np.array([9, 99]), dtype=np.int64),
            ArraySpec((2,), "int64", 0, 99),
        ),
        (spaces.Discrete(2**31), ArraySpec((), "int32", 0, 2**31 - 1)),
        (spaces.Discrete(2**40), ArraySpec((), "int64", 0, 2**40 - 1)),
        (spaces.MultiDiscrete([2, 2**33]), ArraySpec((2,), "int64", 0, 2**33 - 1)),
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
        (spaces.Box(-2, 2, (3,), np.float64), ArraySpec((3,), "float32", -1, 1)),
        (spaces.Box(0, 0.1, (2, 2), np.float16), ArraySpec((2, 2), "float32", -1, 1)),
        (spaces.Box(np.float32([0, -7]), np.float32([1, 0])), ArraySpec((2,), "float32", -1, 1)),
        (spaces.Box(3, 4, ()), ArraySpec((), "float32", -1, 1)),
        (
            spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (2,))]),
            (ArraySpec((), "int32", 0, 1), ArraySpec((2,), "float32", -1, 1)),
        ),
        (
            spaces.Dict(move=spaces.Discrete(3), jump=spaces.MultiBinary(1)),
            {"move": ArraySpec((), "int32", 0, 2), "jump": (ArraySpec((), "int32", 0, 1),)},
        ),
    ],
)
def test_action_specs_and_what_the_environment_gets(space, spec):
    assert specs_of(action=space).action == spec
    decode, split = action_decoder(space), action_splitter(space)
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = map_nest(
            lambda leaf: (
                rng.integers(0, leaf.maximum + 1, (4, *leaf.shape), np.int32)
                if leaf.dtype == "int32"
                else rng.uniform(-1, 1, (4, *leaf.shape)).astype(np.float32)
            ),
            spec,
        )
        batch = decode(action)
        assert batch_space(space, 4).contains(batch), batch
        rows = split(batch)
        assert len(rows) == 4
        for row in rows:
            assert space.contains(row), row
        # The i-th row of the batch is what the i-th environment gets.
        for row, other in zip(rows, iterate(batch_space(space, 4), batch), strict=True):
            assert all(map(np.array_equal, flatten(row), flatten(other)))


def test_decoding_adds_the_start_and_keeps_the_order():
    assert action_decoder(spaces.Discrete(5, start=2))(np.array([0, 3])).tolist() == [2, 5]
    columns = tuple(np.array([0, value], np.int32) for value in (1, 2, 3, 4))
    decoded = action_decoder(spaces.MultiDiscrete([[2, 3], [4, 5]]))(columns)
    assert decoded.tolist() == [[[0, 0], [0, 0]], [[1, 2], [3, 4]]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_boxes_of_actions_end_exactly_at_their_bounds(dtype):
    """Case 103's other end: -1 is low and 1 is high to the last bit, and all else is between."""
    rng = np.random.default_rng(0)
    bounds = np.sort(rng.normal(size=(2, 1000)) * 10.0 ** rng.integers(-3, 4, 1000), axis=0)
    low, high = bounds.astype(dtype)
    space = spaces.Box(low, high, dtype=dtype)
    ends = np.repeat(np.float32([[-1], [1], [0]]), 1000, axis=1)
    decoded = action_decoder(space)(ends)
    assert decoded.dtype == dtype
    assert np.array_equal(decoded[:2], [low, high])
    np.testing.assert_allclose(decoded[2], (low.astype(float) + high) / 2, rtol=2e-3, atol=1e-3)
    inside = rng.uniform(-1, 1, (100, 1000)).astype(np.float32)
    inside[0] = np.nextafter(np.float32(1), np.float32(0))
    for row in action_decoder(space)(inside):
        assert space.contains(row)


def test_boxes_of_actions_are_mapped_elementwise():
    space = spaces.Box(np.float32([-2, 0, 5]), np.float32([2, 10, 5]))
    action = np.float32([[-0.5, -0.5, -0.5], [0.25, 0.25, 0.25]])
    assert action_decoder(space)(action).tolist() == [[-1, 2.5, 5], [0.5, 6.25, 5]]


NO_BOUNDS = spaces.Box(-np.inf, np.inf, (2,), np.float32)
HALF_BOUND = spaces.Box(np.float32([0, 0]), np.float32([1, np.inf]))
OLD_NO_BOUNDS = spaces.Box(-1, np.finfo(np.float32).max, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (NO_BOUNDS, "has no bounds, wanted a Box of floats with finite bounds: leave out"),
        (HALF_BOUND, "has no bounds, wanted a Box of floats with finite bounds: leave out"),
        (OLD_NO_BOUNDS, "has no bounds, wanted a Box of floats with finite bounds: leave out"),
        (spaces.Box(0, 9, (2,), np.int64), "holds int64, wanted a Box of floats with finite"),
        (spaces.Box(0, 255, (2,), np.uint8), "holds uint8, wanted a Box of floats with finite"),
    ],
)
def test_boxes_of_actions_that_cannot_be_mapped_are_refused(space, words):
    for action in (space, spaces.Tuple([spaces.Discrete(2), space])):
        with pytest.raises(ValueError) as error:
            specs_of(action=action)
        field = "action_space" if action is space else "action_space/1"
        assert str(error.value).startswith(f"{field} {space} {words}")
        assert "gymnasium.wrappers.TransformAction" in str(error.value)
    specs_of(observation=space)  # as observations they are welcome


def test_what_the_refusal_advises_works():
    wrapped = gymnasium.wrappers.TransformAction(
        gymnasium.wrappers.ClipAction(gymnasium.make("Pendulum-v1")),
        lambda action: action,
        spaces.Box(-2, 2, (1,)),
    )
    with pytest.raises(ValueError, match=r"leave out gymnasium\.wrappers\.ClipAction"):
        specs_of(action=wrapped.env.action_space)
    assert specs_of(action=wrapped.action_space).action == ArraySpec((1,), "float32", -1, 1)


def test_the_environment_may_write_to_its_action():
    for space, zeros in (
        (spaces.Box(-1, 1, (3,)), np.zeros((2, 3), np.float32)),
        (spaces.Discrete(3), np.zeros(2, np.int64)),
    ):
        action_decoder(space)(zeros)[:] = 1
        assert not zeros.any()


def test_masks_of_actions_are_observed_as_they_are():
    space = spaces.Dict(
        action_mask=spaces.Box(0, 1, (4,), np.int8), observation=spaces.Box(0, 9, (2,), np.float32)
    )
    assert specs_of(observation=space).observation == {
        "action_mask": ArraySpec((4,), "int8", 0, 1),
        "observation": ArraySpec((2,), "float32", 0, 9),
    }


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
    assert action_splitter(Discrete(n=4))(action_decoder(Discrete(n=4))(np.array([3]))) == [3]


NO_NUMBERS = [spaces.Box(0, 1, (0,)), spaces.Box(0, 1, (2, 0)), spaces.MultiDiscrete([])]


@pytest.mark.parametrize("space", NO_NUMBERS)
def test_spaces_without_numbers_are_refused(space):
    """Field, value seen, value wanted."""
    words = f"wanted at least one number, saw shape {list(space.shape)} in {space}"
    nested = spaces.Dict(hand=spaces.Tuple([spaces.Discrete(2), space]))
    for options, field in (
        ({"observation": space}, "observation_space"),
        ({"observation": nested}, "observation_space/hand/1"),
        ({"action": space}, "action_space"),
        ({"action": nested}, "action_space/hand/1"),
    ):
        with pytest.raises(ValueError) as error:
            specs_of(**options)
        assert str(error.value).startswith(f"{field}: {words}")


@pytest.mark.parametrize("field", ["observation", "action"])
def test_spaces_without_spaces_are_refused(field):
    with pytest.raises(ValueError, match=f"{field}_space: wanted at least one space within it"):
        environment_specs(
            **{"observation_space": spaces.Discrete(2), "action_space": spaces.Discrete(2)}
            | {f"{field}_space": spaces.Dict({"empty": spaces.Tuple([])})}
        )


@pytest.mark.parametrize(
    ("space", "field", "seen"),
    [
        (spaces.Discrete(2**40), "action_space", 2**40),
        (spaces.MultiDiscrete([3, 2**20 + 1]), "action_space", 2**20 + 1),
        (spaces.Tuple([spaces.Discrete(2**40)]), "action_space/0", 2**40),
    ],
)
def test_more_actions_than_a_network_has_outputs_for_are_refused(space, field, seen):
    with pytest.raises(ValueError, match=f"^{field}: wanted at most 1048576 .*, saw {seen} in "):
        specs_of(action=space)
    assert specs_of(action=spaces.Discrete(2**20)).action.num_choices == 2**20


def test_numbers_beyond_an_int64_are_refused():
    space = spaces.Discrete(2**62, start=2**62 + 5)
    with pytest.raises(ValueError, match=r"^observation_space: wanted numbers that an int64 holds"):
        specs_of(observation=space)


def test_mountain_car_keeps_its_bounds():
    """Its two numbers lie in [-1.2, 0.6] and [-0.07, 0.07]."""
    observation = specs_of(gymnasium.make("MountainCar-v0").observation_space).observation
    assert str(observation) == "float32[2] in [-1.2, 0.6] x [-0.07, 0.07]"


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2))])
def test_other_spaces_are_refused(space):
    wanted = "wanted a space of a kind in Box, Discrete, MultiDiscrete, MultiBinary, Tuple, Dict"
    with pytest.raises(ValueError, match=wanted):
        specs_of(observation=gymnasium.spaces.Tuple([space]))
    with pytest.raises(ValueError, match=wanted):
        specs_of(action=space)
