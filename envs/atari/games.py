"""Names of games, as people write them, and what a game's ROM tells."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import re

import ale_py
import ale_py.roms
import gymnasium


@functools.cache
def _roms() -> dict[str, str]:
    """ROM names by what they are without case and underscores: 'ms_pacman' by 'mspacman'.

    Of ALE's ROMs, those that have a game for one player: loading another ends the process.
    """
    single_player = {
        spec.kwargs["game"] for name, spec in gymnasium.registry.items() if name.startswith("ALE/")
    }
    return {rom.replace("_", ""): rom for rom in sorted(single_player)}


def rom_of(game: str) -> str:
    """The ROM of 'Pong', 'pong', 'PongNoFrameskip-v4' or 'ALE/Pong-v5': 'pong'.

    An id says which game only: frame skips and sticky actions have options of their own.
    """
    key = re.sub(r"^ALE/|(Deterministic|NoFrameskip)?-v\d+$", "", game).replace("_", "").lower()
    if key in _roms():
        return _roms()[key]
    close = difflib.get_close_matches(key, _roms(), n=3) or list(_roms())
    raise ValueError(
        f"--game={game} is no Atari game; {'did you mean' if len(close) <= 3 else 'wanted'} "
        f"{' or '.join(_roms()[name] for name in close)}?"
    )


def atari_py_games() -> frozenset[str]:
    """The ROMs that atari_py has and can play; none before it is given any.

    Raises ModuleNotFoundError where it is not installed.
    """
    atari_py = importlib.import_module("atari_py")
    try:
        # It knows no rules for these two, and crashes.
        return frozenset(atari_py.list_games()) - {"pacman", "surround"}
    except FileNotFoundError:  # the folder of the ROMs, which is made with them
        return frozenset()


def require_atari_py(rom: str) -> None:
    """Raises ValueError unless atari_py is there and plays this ROM."""
    if importlib.util.find_spec("atari_py") is None:
        raise ValueError(
            "--atari_backend=atari_py needs the package atari-py, which is not installed: "
            "type scripts/install_atari_py.sh"
        )
    games = atari_py_games()
    if not games:
        raise ValueError(
            "--atari_backend=atari_py: atari-py has no ROMs: type scripts/install_atari_py.sh"
        )
    if rom not in games:
        raise ValueError(
            f"--atari_backend=atari_py does not play --game={rom}: leave --atari_backend out"
        )


@functools.cache
def action_codes(rom: str, full_action_space: bool) -> tuple[int, ...]:
    """The actions, of 0 to 17, that ALE takes in this game, or those that do something in it.

    All 18 but for Skiing, of which it leaves out those with FIRE.
    """
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    path = ale_py.roms.get_rom_path(rom)
    assert path is not None, rom
    ale.loadROM(path)
    actions = ale.getLegalActionSet() if full_action_space else ale.getMinimalActionSet()
    return tuple(action.value for action in actions)
