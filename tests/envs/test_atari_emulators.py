"""The two emulators, ale_py's and atari_py's: where they agree, and where they can't."""

import importlib.util
import sys

import ale_py
import ale_py.roms
import numpy as np
import pytest
from emulators import needs_atari_py

from seed_rl.envs import atari
from seed_rl.envs.atari.games import action_codes
from seed_rl.envs.atari.pictures import picture
from seed_rl.types import StepType

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


def emulators(rom: str, seed: int = 1):
    """ALE's and atari_py's, whose seed 0 would be the time."""
    import atari_py

    new, old = ale_py.ALEInterface(), atari_py.ALEInterface()
    for emulator in (new, old):
        emulator.setInt("random_seed", seed)
        emulator.setFloat("repeat_action_probability", 0.0)
    new.loadROM(ale_py.roms.get_rom_path(rom))
    old.loadROM(atari_py.get_game_path(rom))
    for emulator in (new, old):
        emulator.reset_game()
    return new, old


def first_difference(rom: str, frames: int = 1000) -> int | None:
    """The first frame at which screen, RAM, score, lives or end of the two differ."""
    new, old = emulators(rom)
    for t, action in enumerate(np.random.default_rng(0).integers(18, size=frames).tolist()):
        if new.game_over():
            new.reset_game()
            old.reset_game()
        scores = new.act(ale_py.Action(action)), old.act(action)
        if not (
            scores[0] == scores[1]
            and (new.game_over(), new.lives()) == (old.game_over(), old.lives())
            and np.array_equal(new.getScreenGrayscale(), old.getScreenGrayscale()[:, :, 0])
            and np.array_equal(new.getRAM(), old.getRAM())
        ):
            return t
    return None


@needs_atari_py
@pytest.mark.parametrize("rom", ["breakout", "montezuma_revenge", "ms_pacman", "pong", "qbert"])
def test_they_give_the_same_1000_frames(rom):
    """Case 107: they are deterministic, so that the same actions lead to the same anywhere."""
    assert first_difference(rom) is None


@needs_atari_py
def test_only_atari_py_starts_from_random_memory():
    """Case 107: by its seed. So games can't be compared that read memory which nobody wrote."""
    memories = [[np.array(e.getRAM()) for e in emulators("assault", seed)] for seed in (1, 1, 2)]
    (new, old), (new_again, old_again), (new_other, old_other) = memories
    assert np.array_equal(new, new_again)
    assert np.array_equal(old, old_again)
    assert np.array_equal(new, new_other)
    assert not np.array_equal(old, old_other)


@needs_atari_py
def test_they_have_the_same_actions():
    for rom in ("breakout", "pong", "freeway", "montezuma_revenge", "skiing"):
        _, old = emulators(rom)
        assert action_codes(rom, False) == tuple(old.getMinimalActionSet())
        assert action_codes(rom, True) == tuple(old.getLegalActionSet())


@pytest.mark.parametrize("backend", ["ale_py", pytest.param("atari_py", marks=needs_atari_py)])
def test_all_18_actions_are_there_in_skiing(backend):
    """ALE takes only those without FIRE, and would wait for ever for an answer to others."""
    config = atari.Config(game="Skiing", max_random_noops=0, atari_backend=backend)
    assert atari.specs(config).action.num_choices == 18
    assert len(action_codes("skiing", True)) == 9
    environments = atari.make(config, [0, 1], seed=0)
    first = environments.reset()
    rows = [environments.step(np.array([action, 0], np.int32)) for action in (17, 10, 1) * 9]
    environments.close()
    for row in rows:
        assert np.array_equal(row.observation[0], row.observation[1])  # all of them no-ops
    assert not np.array_equal(rows[-1].observation, first.observation)


@needs_atari_py
@pytest.mark.parametrize("repeats", [1, 4])
def test_their_pictures_differ_by_a_rounded_half_at_most(repeats):
    """Of the same frames; 1 grey level of 255 in fewer than 1 % of the pixels."""
    rows = {}
    for backend in atari.BACKENDS:
        config = atari.Config(
            game="space_invaders",
            num_action_repeats=repeats,
            max_random_noops=0,
            atari_backend=backend,
        )
        environments = atari.make(config, [0], seed=0)
        actions = np.random.default_rng(0).integers(18, size=(200, 1), dtype=np.int32)
        rows[backend] = [environments.reset(), *map(environments.step, actions)]
        environments.close()
    differences = []
    for new, old in zip(rows["ale_py"], rows["atari_py"], strict=True):
        assert new.step_type == old.step_type
        assert new.reward == old.reward
        if new.step_type <= StepType.MID:
            differences.append(np.abs(new.observation - old.observation.astype(int)))
    assert np.max(differences) <= 1
    assert np.mean(differences) < 0.01


def test_pictures_average_areas():
    """Cases 1 and 90: by hand, a screen of one colour, and single pixels in the corners."""
    screens = np.full((2, 210, 160), 200, np.uint8)
    assert (picture(screens) == 200).all()
    screens[:] = 0
    screens[0, 0, 0] = screens[1, 209, 159] = 255
    # A pixel is 0.4 x 0.525 of the picture's.
    assert picture(screens)[0, 0, 0] == picture(screens)[1, 83, 83] == round(255 * 0.4 * 0.525)
    assert picture(screens).astype(int).sum() == 2 * round(255 * 0.4 * 0.525)
    # The row in the middle of five is shared between two.
    screens[:] = 0
    screens[:, 2] = 100
    assert (picture(screens)[:, :2] == 20).all()
    assert not picture(screens)[:, 2:].any()


@needs_atari_py
def test_the_last_picture_has_the_very_last_frames():
    config = atari.Config(
        game="freeway", max_random_noops=0, max_episode_frames=6, atari_backend="atari_py"
    )
    environments = atari.make(config, [0], seed=0)
    environments.reset()
    environments.step(np.zeros(1, np.int32))
    last = environments.step(np.zeros(1, np.int32))
    environments.close()
    _, old = emulators("freeway")
    screens = []
    for _ in range(6):
        old.act(0)
        screens.append(old.getScreenGrayscale()[:, :, 0])
    assert last.step_type == StepType.TRUNCATED
    assert np.array_equal(last.observation[0], picture(np.max(screens[-2:], axis=0)[None])[0])


@needs_atari_py
def test_games_that_atari_py_does_not_play_are_refused():
    """It would crash."""
    for game in ("Surround", "Pacman", "Backgammon"):
        with pytest.raises(ValueError, match=r"atari_py does not play --game=.*: leave --atari_b"):
            atari.Config(game=game, atari_backend="atari_py")


def test_without_atari_py_one_line_says_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "atari_py", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the package atari-py.*scripts/install_atari_py"):
        atari.Config(atari_backend="atari_py")


@needs_atari_py
def test_without_roms_one_line_says_what_to_type(monkeypatch, tmp_path):
    import atari_py

    monkeypatch.setattr(atari_py.games, "_games_dir", str(tmp_path / "missing"))
    with pytest.raises(ValueError, match=r"atari-py has no ROMs: type scripts/install_atari_py"):
        atari.Config(atari_backend="atari_py")
