import itertools

import numpy as np
import pytest

from seed_rl.envs import recall
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType


def shown(observation: np.ndarray, num_cues: int = 4) -> tuple[int | None, int | None, bool]:
    """The cue, the number to copy, whether the cue is asked for: at most one of the three."""
    assert set(np.unique(observation)) <= {0, 1}
    assert observation.sum() <= 1
    cue, number = np.split(observation[: 2 * num_cues], 2)
    return (
        int(cue.argmax()) if cue.any() else None,
        int(number.argmax()) if number.any() else None,
        bool(observation[-1]),
    )


class Rememberer:
    """Copies the numbers, and answers with the cue plus `error`."""

    def __init__(self, num_cues: int, error: int = 0) -> None:
        self._num_cues = num_cues
        self._error = error
        self._cues: dict[int, int] = {}

    def __call__(self, env: int, observation: np.ndarray) -> int:
        cue, number, _ = shown(observation, self._num_cues)
        if cue is not None:
            self._cues[env] = cue
        if number is not None:
            return number
        return (self._cues[env] + self._error) % self._num_cues


def test_specs():
    specs = recall.specs(recall.Config())
    assert specs.observation == ArraySpec((9,), "float32", 0, 1)
    assert specs.action == ArraySpec((), "int32", 0, 3)
    assert recall.describe(recall.Config()) == "Recall of 1 of 4 cues after 32 step(s)"


@pytest.mark.parametrize("error", [0, 1])
def test_an_episode_step_by_step(error):
    environments = recall.make(recall.Config(num_cues=4, delay=3), [0], seed=0)
    rows = environments.reset()
    for _ in range(20):
        assert rows.step_type[0] == StepType.FIRST
        assert rows.reward[0] == 0
        cue = shown(rows.observation[0])[0]
        assert cue is not None
        rows = environments.step(np.array([3], np.int32))  # nothing asks for an action here
        for _ in range(3):
            number = shown(rows.observation[0])[1]
            assert number is not None
            assert rows.step_type[0] == StepType.MID
            rows = environments.step(np.array([number], np.int32))
            assert rows.reward[0] == rows.raw_reward[0] == np.float32(1 / 6)
        assert rows.step_type[0] == StepType.MID
        assert shown(rows.observation[0]) == (None, None, True)
        rows = environments.step(np.array([(cue + error) % 4], np.int32))
        assert rows.step_type[0] == StepType.TERMINATED
        assert rows.reward[0] == rows.raw_reward[0] == (-0.5 if error else 0.5)
        assert shown(rows.observation[0]) == (None, None, False)
        rows = environments.step(np.array([0], np.int32))


@pytest.mark.parametrize("wrong_at", [1, 2, 3])
def test_a_number_that_is_not_copied_ends_the_episode(wrong_at):
    environments = recall.make(recall.Config(num_cues=4, delay=3), range(8), seed=0)
    environments.reset()
    rows = environments.step(np.zeros(8, np.int32))
    for t in range(1, wrong_at + 1):
        assert (rows.step_type == StepType.MID).all()
        numbers = np.array([shown(row)[1] for row in rows.observation], np.int32)
        rows = environments.step((numbers + (t == wrong_at)) % 4)
    assert (rows.step_type == StepType.TERMINATED).all()
    assert (rows.reward == 0).all()
    assert (rows.observation == 0).all()
    assert (environments.step(np.zeros(8, np.int32)).step_type == StepType.FIRST).all()


def returns(policy, steps: int, **options) -> list[float]:
    environments = recall.make(recall.Config(**options), range(16), seed=3)
    rows, ended = environments.reset(), []
    total = np.zeros(16)
    for _ in range(steps):
        actions = [policy(env, observation) for env, observation in enumerate(rows.observation)]
        rows = environments.step(np.array(actions, np.int32))
        total += rows.reward
        last = rows.step_type == StepType.TERMINATED
        ended.extend(total[last])
        total[last] = 0
    environments.close()
    return ended


@pytest.mark.parametrize(("delay", "num_questions"), [(5, 1), (6, 3), (4, 4)])
def test_who_remembers_the_cue_wins(delay, num_questions):
    policy = Rememberer(num_cues=3)
    ended = returns(
        lambda env, x: policy(env, x) if x.any() else 0,
        700,
        num_cues=3,
        delay=delay,
        num_questions=num_questions,
    )
    assert len(ended) >= 16 * 700 // (delay + num_questions + 3)
    np.testing.assert_allclose(ended, 1.0, rtol=1e-6)


def test_questions_come_at_even_distances_and_go_on_after_a_wrong_answer():
    environments = recall.make(recall.Config(delay=6, num_questions=3), [0], seed=0)
    rows = environments.reset()
    cue = shown(rows.observation[0])[0]
    asked, rewards, number = [], [], 0
    for time in range(1, 11):
        rows = environments.step(np.array([number], np.int32))
        rewards.append(float(rows.reward[0]))
        if rows.step_type[0] == StepType.TERMINATED:
            break
        _, number, asks = shown(rows.observation[0])
        if asks:
            asked.append(time)
            number = (cue + (len(asked) == 2)) % 4  # the second answer is wrong
    assert asked == [3, 6, 9]
    assert time == 10
    np.testing.assert_allclose(rewards, np.array([0, 1, 1, 2, 1, 1, -2, 1, 1, 2]) / 12, rtol=1e-6)


def test_who_forgets_the_cue_guesses_one_of_four():
    rng = np.random.default_rng(0)

    def guess(env, observation):
        number = shown(observation)[1]
        return rng.integers(4) if number is None else number

    ended = returns(guess, steps=2000, delay=2)
    assert len(ended) == 16 * 400
    assert abs(np.mean(ended) - 1 / 4) < 0.025  # four standard errors


def balanced_env_ids(delay: int) -> list[int]:
    """Environments whose first episodes are all that there are with two cues, each once."""
    environments = recall.make(recall.Config(num_cues=2, delay=delay), range(200), seed=0)
    rows, episodes = environments.reset(), []
    for _ in range(delay + 1):
        numbers = rows.observation[:, :4].argmax(axis=1) % 2
        episodes.append(numbers)
        rows = environments.step(numbers)
    first_ids = {tuple(episode): i for i, episode in reversed([*enumerate(np.transpose(episodes))])}
    assert set(first_ids) == set(itertools.product((0, 1), repeat=delay + 1))
    return list(first_ids.values())


@pytest.mark.parametrize("delay", [1, 2])
def test_no_policy_without_memory_is_better_than_chance(delay):
    """All of them, of what networks see: observation, last action and reward, and the time, too.

    Deterministic ones are enough. An episode meets no input twice, so the return is linear in each
    probability of a random policy, and largest where all of them are 0 or 1.
    """
    env_ids = balanced_env_ids(delay)
    num_inputs = 2 + 4 * delay + 2  # cues; numbers and last actions at each time; last actions
    policy = np.repeat(np.arange(2**num_inputs), len(env_ids))  # bit i: its answer to input i
    environments = recall.make(
        recall.Config(num_cues=2, delay=delay), np.tile(env_ids, 2**num_inputs), seed=0
    )
    rows = environments.reset()
    result, playing, action = np.zeros(len(policy)), np.full(len(policy), True), 0
    for time in range(delay + 2):
        assert (rows.reward[playing] == (0.5 / delay if time > 1 else 0)).all()
        if time <= delay:
            seen = rows.observation[:, :4].argmax(axis=1)  # the cue, or 2 + the number
            if time > 0:
                seen = 2 + 4 * (time - 1) + 2 * (seen % 2) + action
        else:
            assert (rows.observation[playing] == [0, 0, 0, 0, 1]).all()
            seen = 2 + 4 * delay + action
        action = policy >> seen & 1
        rows = environments.step(action)
        result += np.where(playing, rows.reward, 0)
        playing &= rows.step_type == StepType.MID
    assert not playing.any()
    means = result.reshape(2**num_inputs, len(env_ids)).mean(axis=1)
    assert means.min() == 0
    assert means.max() == 1 / 2


def test_seeds():
    """Case 63."""

    def observations(env_ids, seed):
        environments = recall.make(recall.Config(num_cues=2, delay=1), env_ids, seed)
        rows = [environments.reset()]
        rows += [environments.step(np.ones(len(env_ids), np.int32)) for _ in range(80)]
        return np.stack([row.observation for row in rows], axis=1)

    eight = observations(range(8), 0)
    for i in range(8):
        for j in range(i):
            assert not np.array_equal(eight[i], eight[j])
    assert np.array_equal(eight, observations(range(8), 0))
    assert np.array_equal(eight[4:], observations(range(4, 8), 0))
    assert not np.array_equal(eight, observations(range(8), 1))


def test_transitions_are_never_written_to_again():
    """Case 101."""
    environments = recall.make(recall.Config(num_cues=2, delay=2), range(3), seed=0)
    rows = environments.reset()
    for t in range(30):
        copies = [np.copy(leaf) for leaf in rows]
        after = environments.step(np.zeros(3, np.int32)) if t < 29 else environments.reset()
        for leaf, copy in zip(rows, copies, strict=True):
            assert np.array_equal(leaf, copy)
        rows = after
    assert (rows.step_type == StepType.FIRST).all()


def test_there_are_cues_to_tell_apart():
    with pytest.raises(ValueError, match="num_cues: wanted at least 2, saw 1"):
        recall.Config(num_cues=1)


def test_there_is_something_to_wait_for():
    with pytest.raises(ValueError, match="delay: wanted at least 1, saw 0"):
        recall.Config(delay=0)


@pytest.mark.parametrize("num_questions", [0, 3, 33])
def test_questions_divide_the_delay(num_questions):
    with pytest.raises(ValueError, match="num_questions: wanted a divisor of delay=32"):
        recall.Config(num_questions=num_questions)
