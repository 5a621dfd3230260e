import numpy as np
import pytest

from seed_rl.grpc.codec import Layout, RowCheck, action_layout, step_layout
from seed_rl.specs import ArraySpec, packed_bits
from seed_rl.types import StepType

OBSERVATION = {
    "pose": (ArraySpec((3,), "float32"), ArraySpec((), "bool")),
    "image": ArraySpec((2, 2), "uint8"),
}
LAYOUT = step_layout(OBSERVATION)


def make_columns(env_ids, step_type=StepType.FIRST):
    n = len(env_ids)
    columns = LAYOUT.empty(n)
    columns[0][:] = env_ids
    columns[1][:] = step_type
    columns[2][:] = np.arange(n)
    columns[4][:] = np.arange(n * 4).reshape(n, 2, 2)
    columns[5][:] = np.arange(n * 3).reshape(n, 3)
    return columns


def check(checker, columns):
    message = LAYOUT.encode(columns)
    return checker.check(message, *LAYOUT.locate(message))


def test_step_layout_lists_leaves_in_flatten_order():
    assert [name for name, _ in LAYOUT.fields] == [
        "env_id",
        "step_type",
        "reward",
        "raw_reward",
        "observation/image",
        "observation/pose/0",
        "observation/pose/1",
    ]
    assert LAYOUT.row_bytes == 4 + 1 + 4 + 4 + 4 + 12 + 1
    assert step_layout(ArraySpec((5,), "int16")).fields[-1] == (
        "observation",
        ArraySpec((5,), "int16"),
    )


def test_how_bits_are_packed_is_part_of_the_layout():
    packed, other = step_layout(packed_bits((3, 5))), step_layout(packed_bits((5, 3)))
    assert packed.row_bytes == other.row_bytes == 13 + 2
    assert Layout.from_json(packed.to_json()) == packed
    assert packed.hash != other.hash
    assert other.difference(packed) == (
        "saw observation uint8[2] of bits[5, 3], wanted observation uint8[2] of bits[3, 5]"
    )


@pytest.mark.parametrize("n", [1, 2, 7, 200])
def test_decode_returns_what_encode_took(n):
    columns = make_columns(range(n))
    decoded = LAYOUT.decode(LAYOUT.encode(columns))
    for column, back, (_, spec) in zip(columns, decoded, LAYOUT.fields, strict=True):
        assert back.dtype == spec.dtype
        np.testing.assert_array_equal(column, back)


def test_encode_copies_non_contiguous_columns_right():
    columns = make_columns([0, 1])
    columns[4] = np.arange(8, dtype=np.uint8).reshape(2, 2, 2).transpose(2, 1, 0)
    np.testing.assert_array_equal(LAYOUT.decode(LAYOUT.encode(columns))[4], columns[4])


def test_layout_survives_json_and_hash_tells_layouts_apart():
    assert Layout.from_json(LAYOUT.to_json()) == LAYOUT
    assert Layout.from_json(LAYOUT.to_json()).hash == LAYOUT.hash
    six = action_layout(ArraySpec((), "int32", 0, 5))
    assert six.hash == action_layout(ArraySpec((), "int32", 0.0, 5.0)).hash
    assert six.hash != action_layout(ArraySpec((), "int32", 0, 17)).hash
    assert six.difference(action_layout(ArraySpec((), "int32", 0, 17))) == (
        "saw action int32[] in [0, 5], wanted action int32[] in [0, 17]"
    )
    # An observation's bounds change nothing on the wire.
    bounded = step_layout(ArraySpec((2,), "float32", 0, 1))
    assert bounded == step_layout(ArraySpec((2,), "float32"))


def test_unbounded_actions_have_a_json_that_every_parser_reads():
    layout = action_layout(ArraySpec((2,), "float32", -np.inf, np.inf))
    assert "Infinity" not in layout.to_json()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '[["a", 1]]',
        '[["a", {"array": {"shape": [1], "dtype": "what"}}]]',
        '[["a", {"array": {"shape": [1], "dtype": "int8", "more": 1}}]]',
        "[]",
    ],
)
def test_from_json_refuses_what_to_json_does_not_write(text):
    with pytest.raises(ValueError):
        Layout.from_json(text)


@pytest.mark.parametrize(
    ("index", "column", "words"),
    [
        (2, np.zeros(2, np.float64), "reward: saw float64[2], wanted float32[2]"),
        (
            4,
            np.zeros((2, 4), np.uint8),
            "observation/image: saw uint8[2, 4], wanted uint8[2, 2, 2]",
        ),
        (1, np.zeros(3, np.uint8), "step_type: saw uint8[3], wanted uint8[2]"),
        (3, [0.0, 0.0], "raw_reward: saw list, wanted a numpy array"),
        (0, np.zeros(0, np.int32), "env_id: saw 0 rows"),
        (0, np.int32(3), "env_id: saw 0 rows"),
    ],
)
def test_encode_names_field_value_seen_and_value_wanted(index, column, words):
    """Case 31, at the sender."""
    columns = make_columns([0, 1])
    columns[index] = column
    with pytest.raises(ValueError) as error:
        LAYOUT.encode(columns)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "message",
    [b"", b"\x0a\x00", b"\x0a", b"\x0a\xff\xff", b"\x12\x01a", b"\x0a\x02a", b"garbage" * 9],
)
def test_decode_refuses_garbage(message):
    """Case 31."""
    with pytest.raises(ValueError):
        LAYOUT.decode(message)


def test_decode_names_the_size_of_a_row():
    """Case 31."""
    other = step_layout(ArraySpec((3,), "uint8"))
    with pytest.raises(ValueError, match="saw 16 bytes, wanted a multiple of 30"):
        LAYOUT.decode(other.encode(other.empty(1)))


def test_row_check_marks_the_first_row_of_each_environment():
    checker = RowCheck(LAYOUT, 10, 4)
    assert check(checker, make_columns([12])).tolist() == [True]
    mixed = make_columns([12, 10])
    mixed[1][:] = [StepType.MID, StepType.FIRST]
    assert check(checker, mixed).tolist() == [False, True]
    assert check(checker, make_columns([10], StepType.MID)) is None
    assert check(checker, make_columns([11, 13])).tolist() == [True, True]
    assert check(checker, make_columns([13, 10, 11, 12], StepType.TRUNCATED)) is None
    assert check(checker, make_columns([10, 11, 12, 13], StepType.FIRST)) is None


@pytest.mark.parametrize(
    ("env_ids", "words"),
    [
        ([9], "env_id: saw 9, wanted one of this actor's 10..13"),
        ([10, 14], "env_id: saw 14"),
        ([-(2**31)], "env_id: saw -2147483648"),
        ([10, 12, 12, 13], "env_id: saw 12 2 times"),
    ],
)
def test_row_check_refuses_env_ids(env_ids, words):
    """Case 6: one actor sends the same env id twice in one call."""
    with pytest.raises(ValueError) as error:
        check(RowCheck(LAYOUT, 10, 4), make_columns(env_ids))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("index", "field"), [(2, "reward"), (3, "raw_reward"), (5, "observation/pose/0")]
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_row_check_refuses_what_is_not_finite(index, field, value):
    """Case 61."""
    columns = make_columns([10, 11, 12])
    columns[index][1, ...] = value
    with pytest.raises(ValueError) as error:
        check(RowCheck(LAYOUT, 10, 4), columns)
    assert f"environment 11: {field} holds {value}, wanted finite" in str(error.value)


def test_row_check_refuses_step_types():
    with pytest.raises(ValueError, match=r"environment 10: step_type is 4, wanted 0 .FIRST."):
        check(RowCheck(LAYOUT, 10, 4), make_columns([10, 11], 4))
    with pytest.raises(ValueError, match=r"environment 10: its first step_type .* is MID"):
        check(RowCheck(LAYOUT, 10, 4), make_columns([10, 11], StepType.MID))
