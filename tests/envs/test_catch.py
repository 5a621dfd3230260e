import numpy as np
import pytest

from seed_rl.envs import catch
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType

BALL, PADDLE = 255, 128


def cells(frame: np.ndarray, size: int = 12) -> np.ndarray:
    """The board [size, size] of a frame, each of whose cells must have one shade."""
    pixels = 84 // size
    board = frame[::pixels, ::pixels]
    assert np.array_equal(np.kron(board, np.ones((pixels, pixels), np.uint8)), frame)
    return board


def find(board: np.ndarray, shade: int) -> tuple[int, int]:
    ((row, column),) = np.argwhere(board == shade)
    return int(row), int(column)


def look_and_act(frame: np.ndarray) -> int:
    """The best action by the picture alone; the ball may hide the paddle."""
    board = cells(frame)
    if not (board == PADDLE).any():
        return 1
    return 1 + int(np.sign(find(board, BALL)[1] - find(board, PADDLE)[1]))


def test_specs():
    specs = catch.specs(catch.Config())
    assert specs.observation == ArraySpec((84, 84), "uint8", 0, 255)
    assert specs.action == ArraySpec((), "int32", 0, 2)
    assert catch.describe(catch.Config()) == "Catch on 12x12 cells, 1 ball(s) an episode"


def test_an_episode_step_by_step():
    environments = catch.make(catch.Config(), [0], seed=0)
    rows = environments.reset()
    row, column = find(cells(rows.observation[0]), BALL)
    bottom, paddle = find(cells(rows.observation[0]), PADDLE)
    assert (row, bottom) == (0, 11)
    for t, action in enumerate([0, 1, 2, 2, 0, 2, 1, 1, 2, 0, 2], start=1):
        rows = environments.step(np.array([action], np.int32))
        paddle = min(max(paddle + action - 1, 0), 11)
        board = cells(rows.observation[0])
        assert find(board, BALL) == (t, column)
        if (t, column) != (11, paddle):
            assert find(board, PADDLE) == (11, paddle)
        assert rows.step_type[0] == (StepType.TERMINATED if t == 11 else StepType.MID)
        wanted = 0 if t < 11 else 1 if paddle == column else -1
        assert rows.reward[0] == rows.raw_reward[0] == wanted
    rows = environments.step(np.array([0], np.int32))
    assert rows.step_type[0] == StepType.FIRST
    assert rows.reward[0] == 0
    assert find(cells(rows.observation[0]), BALL)[0] == 0


def returns(policy, steps: int, **options) -> list[float]:
    environments = catch.make(catch.Config(**options), range(16), seed=3)
    rows, ended = environments.reset(), []
    total = np.zeros(16)
    for _ in range(steps):
        rows = environments.step(np.array([policy(f) for f in rows.observation], np.int32))
        total += rows.reward
        last = rows.step_type == StepType.TERMINATED
        ended.extend(total[last])
        total[last] = 0
    environments.close()
    return ended


def test_who_looks_at_the_picture_catches_every_ball():
    assert set(returns(look_and_act, steps=120)) == {1.0}


def test_who_does_not_look_catches_one_of_twelve():
    """Nothing but the picture tells where the ball is: any blind policy earns -1 + 2/12."""
    rng = np.random.default_rng(0)
    ended = returns(lambda frame: rng.integers(3), steps=2400)
    assert len(ended) == 16 * 200
    assert abs(np.mean(ended) - (-1 + 2 / 12)) < 0.04  # four standard errors
    assert abs(np.mean(returns(lambda frame: 1, steps=2400)) - (-1 + 2 / 12)) < 0.04


def test_smaller_boards_and_several_balls():
    environments = catch.make(catch.Config(board_size=6, balls_per_episode=3), range(2), seed=0)
    rows = environments.reset()
    kinds, rewards = [rows.step_type[0]], [rows.reward[0]]
    for _ in range(18):
        rows = environments.step(np.ones(2, np.int32))
        cells(rows.observation[0], 6)
        kinds.append(rows.step_type[0])
        rewards.append(rows.reward[0])
    # A ball takes 5 steps to the bottom; one more step starts the next ball.
    assert kinds == [StepType.FIRST] + [StepType.MID] * 16 + [StepType.TERMINATED, StepType.FIRST]
    assert np.flatnonzero(rewards).tolist() == [5, 11, 17]


def test_seeds():
    """Case 63."""

    def pictures(env_ids, seed):
        environments = catch.make(catch.Config(board_size=2), env_ids, seed)
        rows = [environments.reset()]
        rows += [environments.step(np.ones(len(env_ids), np.int32)) for _ in range(80)]
        return np.stack([row.observation for row in rows], axis=1)

    eight = pictures(range(8), 0)
    for i in range(8):
        for j in range(i):
            assert not np.array_equal(eight[i], eight[j])
    assert np.array_equal(eight, pictures(range(8), 0))
    assert np.array_equal(eight[4:], pictures(range(4, 8), 0))
    assert not np.array_equal(eight, pictures(range(8), 1))


def test_transitions_are_never_written_to_again():
    """Case 101."""
    environments = catch.make(catch.Config(), range(3), seed=0)
    rows = environments.reset()
    for t in range(30):
        copies = [np.copy(leaf) for leaf in rows]
        after = environments.step(np.zeros(3, np.int32)) if t < 29 else environments.reset()
        for leaf, copy in zip(rows, copies, strict=True):
            assert np.array_equal(leaf, copy)
        rows = after


@pytest.mark.parametrize("size", [1, 0, -12, 5, 168])
def test_bad_board_sizes_are_refused(size):
    with pytest.raises(ValueError, match=f"board_size: wanted a divisor of 84.*saw {size}"):
        catch.Config(board_size=size)


def test_an_episode_has_a_ball():
    with pytest.raises(ValueError, match="balls_per_episode: wanted at least 1, saw 0"):
        catch.Config(balls_per_episode=0)
