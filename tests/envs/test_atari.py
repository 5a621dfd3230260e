"""Atari on the real emulators and their ROMs, against a loop over ALE itself written here."""

import itertools
import os

import ale_py
import ale_py.roms
import numpy as np
import pytest
from emulators import BACKENDS

from seed_rl.envs import atari
from seed_rl.envs.atari.games import rom_of
from seed_rl.specs import ArraySpec
from seed_rl.types import StepType

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


def shrink(rows: np.ndarray, wanted: int) -> np.ndarray:
    """Averages of the rows that each of `wanted` rows covers, in whole or in part."""
    edges = np.linspace(0, len(rows), wanted + 1)
    whole = np.minimum(edges.astype(int), len(rows) - 1)
    sums = np.concatenate([np.zeros((1, rows.shape[1])), np.cumsum(rows, axis=0)])
    up_to_edges = sums[whole] + (edges - whole)[:, None] * rows[whole]
    return np.diff(up_to_edges, axis=0) / (len(rows) / wanted)


def picture(frames: list[np.ndarray]) -> np.ndarray:
    return shrink(shrink(np.max(frames, axis=0), 84).T, 84).T


def raw_ale(game: str) -> ale_py.ALEInterface:
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)  # the emulator's default is 0.25
    ale.loadROM(ale_py.roms.get_rom_path(game))
    return ale


class Reference:
    """One game without no-ops, frame by frame; rows are (step type, reward, picture)."""

    def __init__(self, game: str, repeats: int, cap: int, minimal: bool = False) -> None:
        self.ale = raw_ale(game)
        self.actions = self.ale.getMinimalActionSet() if minimal else self.ale.getLegalActionSet()
        self.repeats, self.cap = repeats, cap

    def reset(self):
        self.ale.reset_game()
        self.frames = 0
        self.ended = False
        return StepType.FIRST, 0, picture([self.ale.getScreenGrayscale()])

    def step(self, action):
        if self.ended:
            return self.reset()
        screens, reward = [], 0
        while len(screens) < self.repeats and not self.ended:
            reward += self.ale.act(self.actions[action])
            screens.append(self.ale.getScreenGrayscale())
            self.frames += 1
            self.ended = self.ale.game_over() or self.frames == self.cap
        step_type = StepType.MID
        if self.ended:
            step_type = StepType.TERMINATED if self.ale.game_over() else StepType.TRUNCATED
        return step_type, reward, picture(screens[-2:])


def random_actions(steps: int, n: int, num_actions: int = 18, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(num_actions, size=(steps, n), dtype=np.int32)


def compare(
    backend: str, game: str, repeats: int, steps: int, cap: int = 108_000, minimal: bool = False
):
    """Steps two environments and references alike; returns the [steps] rows of the first."""
    config = atari.Config(
        game=game,
        num_action_repeats=repeats,
        max_random_noops=0,
        max_episode_frames=cap,
        full_action_space=not minimal,
        num_threads=2,
        atari_backend=backend,
    )
    environments = atari.make(config, [0, 1], seed=3)
    references = [Reference(game, repeats, cap, minimal) for _ in range(2)]
    num_actions = atari.specs(config).action.num_choices
    seen = []
    for t, action in enumerate([None, *random_actions(steps, 2, num_actions)]):
        rows = environments.reset() if action is None else environments.step(action)
        for i, reference in enumerate(references):
            step_type, reward, wanted = reference.reset() if t == 0 else reference.step(action[i])
            assert rows.step_type[i] == step_type, (t, i)
            assert rows.reward[i] == rows.raw_reward[i] == reward, (t, i)
            # ALE takes no picture of an episode's last frame.
            if step_type <= StepType.MID:
                # ALE rounds to whole grey levels, half of them either way.
                assert np.abs(rows.observation[i] - wanted).max() <= 0.51, (t, i)
        seen.append((StepType(rows.step_type[0]), rows.reward[0], rows.observation[0]))
    environments.close()
    return seen


@BACKENDS
@pytest.mark.parametrize("game", ["breakout", "space_invaders", "ms_pacman"])
def test_equals_the_raw_emulator(backend, game):
    """Cases 1 and 90: pictures, rewards and ends of 320 steps; frames are skipped once only."""
    seen = compare(backend, game, repeats=4, steps=320, cap=1200)
    kinds = {kind for kind, _, _ in seen}
    assert StepType.TRUNCATED in kinds or StepType.TERMINATED in kinds
    if game != "breakout":
        assert max(reward for _, reward, _ in seen) > 1  # not clipped


@BACKENDS
def test_both_ends_of_an_episode_are_told_apart(backend):
    """Case 93: games over and games cut off, each followed by FIRST with reward 0."""
    seen = compare(backend, "breakout", repeats=4, steps=330, cap=640)
    kinds = [kind for kind, _, _ in seen]
    assert {StepType.TERMINATED, StepType.TRUNCATED} <= set(kinds)
    for before, (kind, reward, _) in zip(kinds[:-1], seen[1:], strict=True):
        assert (kind == StepType.FIRST) == (before >= StepType.TERMINATED)
        assert kind != StepType.FIRST or reward == 0


@BACKENDS
@pytest.mark.parametrize("repeats", [1, 2, 4, 5])
def test_any_action_repeat_pools_the_last_two_frames(backend, repeats):
    """Case 1: the picture is the maximum of the last min(2, k) frames, and changes as they do."""
    seen = compare(backend, "enduro", repeats, steps=80)  # its road moves in every frame
    for (_, _, before), (_, _, after) in itertools.pairwise(seen):
        assert not np.array_equal(before, after)


@BACKENDS
def test_minimal_action_set(backend):
    config = atari.Config(game="Breakout", full_action_space=False, atari_backend=backend)
    assert atari.specs(config).action == ArraySpec((), "int32", 0, 3)
    compare(backend, "breakout", repeats=4, steps=200, minimal=True)


def test_defaults_are_the_protocol():
    """Cases 1 and 90: four frames a step, each counted once; the cap of case 93."""
    config = atari.Config()
    assert config.num_action_repeats == 4
    assert config.max_episode_frames == 108_000
    assert config.max_random_noops == 30
    assert config.sticky_actions == 0
    assert not config.life_loss
    specs = atari.specs(config)
    assert specs.observation == ArraySpec((84, 84), "uint8", 0, 255)
    assert specs.action == ArraySpec((), "int32", 0, 17)
    line = atari.describe(config)
    assert "\n" not in line
    for part in ("pong", "18 actions", "4 frames a step", "30 random no-ops", "108000 frames"):
        assert part in line
    assert line.endswith(": SEED's protocol")


def test_what_is_not_the_protocol_is_told():
    """Scores played otherwise don't compare with published ones."""
    config = atari.Config(sticky_actions=0.25, life_loss=True, full_action_space=False)
    assert atari.describe(config).endswith(
        ": not SEED's protocol, sticky_actions=0.25 in place of 0.0, full_action_space=False in "
        "place of True, life_loss=True in place of False"
    )


@BACKENDS
@pytest.mark.parametrize(("repeats", "steps"), [(1, 42), (4, 11), (5, 9)])
def test_the_cap_counts_frames(backend, repeats, steps):
    """Case 93: 42 frames, whatever the action repeat and the no-ops."""
    config = atari.Config(num_action_repeats=repeats, max_episode_frames=42, atari_backend=backend)
    environments = atari.make(config, range(3), seed=0)
    kinds = [environments.reset().step_type]
    for action in np.zeros((steps + 1, 3), np.int32):
        kinds.append(environments.step(action).step_type)
    environments.close()
    expected = [StepType.FIRST] + [StepType.MID] * (steps - 1) + [StepType.TRUNCATED]
    assert np.array_equal(kinds, np.repeat([[k] for k in [*expected, StepType.FIRST]], 3, axis=1))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_game_that_never_ends_is_cut_off_at_108000_frames():
    """Case 93: nobody dies in Montezuma's Revenge who doesn't move."""
    environments = atari.make(atari.Config(game="MontezumaRevenge"), [0], seed=0)
    environments.reset()
    for _ in range(108_000 // 4 - 1):
        assert environments.step(np.zeros(1, np.int32)).step_type == StepType.MID
    assert environments.step(np.zeros(1, np.int32)).step_type == StepType.TRUNCATED
    environments.close()


@BACKENDS
def test_the_action_after_an_end_is_ignored(backend):
    config = atari.Config(game="breakout", max_episode_frames=40, atari_backend=backend)
    traces = []
    for answer in (0, 1):
        environments = atari.make(config, [0, 1], seed=7)
        rows = environments.reset()
        trace = [rows]
        for action in random_actions(60, 2):
            rows = environments.step(np.where(rows.step_type >= 2, answer, action))
            trace.append(rows)
        environments.close()
        traces.append(trace)
    assert sum(rows.step_type[0] == StepType.TRUNCATED for rows in traces[0]) >= 5
    for one, other in zip(*traces, strict=True):
        for left, right in zip(one, other, strict=True):
            assert np.array_equal(left, right)


def first_pictures(backend: str, env_ids, seed: int, resets: int, **options) -> np.ndarray:
    """First pictures [n, resets, 84, 84] of episodes of one step."""
    # Its picture differs after any number of no-ops.
    config = atari.Config(game="riverraid", max_episode_frames=4, atari_backend=backend, **options)
    environments = atari.make(config, env_ids, seed)
    rows = [environments.reset()]
    while len(rows) < resets:
        action = np.zeros(len(env_ids), np.int32)
        assert (environments.step(action).step_type == StepType.TRUNCATED).all()
        rows.append(environments.step(action))
        assert (rows[-1].step_type == StepType.FIRST).all()
    environments.close()
    return np.stack([row.observation for row in rows], axis=1)


@BACKENDS
def test_seeds_differ_between_environments_and_depend_on_global_ids_only(backend):
    """Case 63: the first 20 resets of 8 environments with one seed, all in one process or not."""
    pictures = first_pictures(backend, range(8), seed=5, resets=20)
    for i in range(8):
        for j in range(i):
            assert not np.array_equal(pictures[i], pictures[j]), (i, j)
    assert np.array_equal(pictures[:, :4], first_pictures(backend, range(8), seed=5, resets=4))
    assert np.array_equal(pictures[4:, :4], first_pictures(backend, range(4, 8), seed=5, resets=4))
    assert not np.array_equal(pictures[:, :4], first_pictures(backend, range(8), seed=6, resets=4))


@BACKENDS
@pytest.mark.parametrize(("noops", "resets"), [(0, 1), (3, 6), (30, 20)])
def test_random_noops_are_from_none_to_the_most(backend, noops, resets):
    ale = raw_ale("riverraid")
    ale.reset_game()
    candidates = []
    for _ in range(noops + 1):
        candidates.append(picture([ale.getScreenGrayscale()]))
        ale.act(0)
    pictures = first_pictures(backend, range(8), 0, resets, max_random_noops=noops)
    distance = np.abs(
        pictures.reshape(-1, 1, 84 * 84) - np.reshape(candidates, (1, -1, 84 * 84))
    ).max(axis=2)
    matches = distance <= 0.51
    assert (matches.sum(axis=1) == 1).all()  # each is one of them
    assert matches.any(axis=0).all()  # each of them comes up


@BACKENDS
def test_a_second_reset_goes_on_with_the_random_streams(backend):
    environments = atari.make(atari.Config(game="freeway", atari_backend=backend), range(8), seed=0)
    first, second = environments.reset(), environments.reset()
    environments.close()
    assert (second.step_type == StepType.FIRST).all()
    assert not np.array_equal(first.observation, second.observation)


@BACKENDS
def test_same_seed_and_actions_give_the_same_500_steps(backend):
    """Case 107, with sticky actions, so that the emulator's own randomness takes part."""
    config = atari.Config(game="space_invaders", sticky_actions=0.25, atari_backend=backend)
    traces = []
    for seed in (0, 0, 1):
        environments = atari.make(config, range(2), seed)
        rows = [environments.reset(), *map(environments.step, random_actions(500, 2))]
        environments.close()
        traces.append(rows)
    same, other = 0, 0
    for a, b, c in zip(*traces, strict=True):
        same += all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
        other += all(np.array_equal(x, y) for x, y in zip(a, c, strict=True))
    assert same == 501
    assert other < 50


@BACKENDS
def test_actions_stick_only_when_asked_to(backend):
    traces = []
    for sticky_actions, seed in ((0.0, 0), (0.0, 1), (0.5, 0), (0.5, 1)):
        config = atari.Config(
            max_random_noops=0, sticky_actions=sticky_actions, atari_backend=backend
        )
        environments = atari.make(config, [0], seed)
        environments.reset()
        rows = [environments.step(action).observation for action in random_actions(100, 1)]
        environments.close()
        traces.append(np.stack(rows))
    assert np.array_equal(traces[0], traces[1])
    assert not np.array_equal(traces[2], traces[3])


@BACKENDS
def test_transitions_are_never_written_to_again(backend):
    """Case 101."""
    config = atari.Config(max_episode_frames=12, atari_backend=backend)
    environments = atari.make(config, range(3), seed=0)
    rows, kept = environments.reset(), []
    for action in random_actions(50, 3):
        kept.append((rows, [np.copy(leaf) for leaf in rows]))
        rows = environments.step(action)
    environments.reset()
    environments.close()
    for rows, copies in kept:
        for leaf, copy in zip(rows, copies, strict=True):
            assert np.array_equal(leaf, copy)


@BACKENDS
def test_a_lost_life_ends_an_episode_but_not_the_game_if_asked_to(backend):
    actions = np.ones((400, 2), np.int32)  # FIRE serves, then nobody hits: five lives go by
    options = {"game": "breakout", "max_random_noops": 0, "full_action_space": False}
    options["atari_backend"] = backend
    environments = atari.make(atari.Config(**options), [0, 1], seed=0)
    environments.reset()
    whole = [environments.step(action) for action in actions]
    environments.close()
    game_length = 1 + next(t for t, rows in enumerate(whole) if rows.step_type[0] >= 2)

    environments = atari.make(atari.Config(**options, life_loss=True), [0, 1], seed=0)
    first = environments.reset()
    rows = [environments.step(action) for action in actions[: game_length + 20]]
    environments.close()
    ends = [t for t, row in enumerate(rows) if row.step_type[0] == StepType.TERMINATED]
    assert len(ends) >= 5
    for end in ends[:5]:
        after = rows[end + 1]
        assert (after.step_type == StepType.FIRST).all()
        assert (after.reward == 0).all()
    # After four of the lives the game goes on; after the fifth it starts anew.
    starts = [np.array_equal(rows[end + 1].observation, first.observation) for end in ends[:5]]
    assert starts == [False] * 4 + [True]


def test_a_life_lost_on_a_first_step_ends_the_episode_a_step_later(monkeypatch):
    """The no-op that follows a lost life may lose the next one, too."""
    environments = atari.make(atari.Config(game="breakout", life_loss=True), [0, 1], seed=0)
    environments.reset()
    terminated = iter([[1, 0], [1, 0], [0, 0], [0, 1], [0, 0], [0, 0]])
    actions = []

    def step(action):
        actions.append(action.tolist())
        ended = np.array(next(terminated), bool)
        return np.zeros((2, 1, 84, 84), np.uint8), np.ones(2, np.int32), ended, ended & False, {}

    monkeypatch.setattr(environments._envs, "step", step)
    rows = [environments.step(np.array([2, 3], np.int32)) for _ in range(6)]
    environments.close()
    kinds = np.array([row.step_type for row in rows])
    assert kinds[:, 0].tolist() == [2, 0, 2, 0, 1, 1]
    assert kinds[:, 1].tolist() == [1, 1, 1, 2, 0, 1]
    assert actions == [[2, 3], [0, 3], [2, 3], [0, 3], [2, 0], [2, 3]]
    assert [row.reward[0] for row in rows] == [1, 0, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("name", "rom"),
    [
        ("Pong", "pong"),
        ("pong", "pong"),
        ("PongNoFrameskip-v4", "pong"),
        ("PongDeterministic-v0", "pong"),
        ("Pong-v4", "pong"),
        ("ALE/Pong-v5", "pong"),
        ("MsPacman", "ms_pacman"),
        ("ms_pacman", "ms_pacman"),
        ("ALE/SpaceInvaders-v5", "space_invaders"),
    ],
)
def test_names_of_games(name, rom):
    assert rom_of(name) == rom


def test_unknown_games_are_refused_with_the_closest_names():
    with pytest.raises(ValueError, match=r"--game=Pongg is no Atari game; did you mean.*pong"):
        atari.Config(game="Pongg")
    with pytest.raises(ValueError, match=r"--game=zzzzzz is no Atari game; wanted.*ms_pacman"):
        atari.Config(game="zzzzzz")
    # Loading a ROM without a game for one player would end the process.
    with pytest.raises(ValueError, match="--game=combat"):
        atari.Config(game="combat")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_action_repeats", 0),
        ("max_random_noops", -1),
        ("max_episode_frames", 0),
        ("num_stacked_frames", 0),
        ("num_threads", -1),
        ("sticky_actions", 1.0),
        ("atari_backend", "stella"),
    ],
)
def test_bad_options_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=rf"^{field}: wanted .*, saw {value}"):
        atari.Config(**{field: value})


@BACKENDS
@pytest.mark.parametrize("action", [18, -1])
def test_an_action_that_the_game_lacks_is_refused(backend, action):
    """ALE itself would never answer."""
    environments = atari.make(atari.Config(atari_backend=backend), [0, 1], seed=0)
    environments.reset()
    with pytest.raises(ValueError, match="wanted actions from 0 to 17, saw"):
        environments.step(np.array([0, action], np.int32))
    environments.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads on Linux")
def test_threads_start_with_make_and_end_with_close():
    before = len(os.listdir("/proc/self/task"))
    atari.specs(atari.Config(full_action_space=False))
    assert len(os.listdir("/proc/self/task")) == before
    environments = atari.make(atari.Config(num_threads=1), range(2), seed=0)
    environments.reset()
    assert len(os.listdir("/proc/self/task")) == before + 1
    environments.close()
    environments.close()
    assert len(os.listdir("/proc/self/task")) == before
