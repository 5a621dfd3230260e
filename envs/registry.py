"""Environment families by name. A family is imported only when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util

from seed_rl import factories
from seed_rl.envs.environment import Family

# Families, each with what its optional dependencies are imported as, and what installs them.
_FAMILIES = {
    "atari": ("ale_py", "pip install 'seed_rl[atari]'"),
    "catch": None,
    "dmlab": None,  # says itself what it needs: pip can't install that
    "football": ("gfootball", "scripts/install_football.sh"),
    "gym": None,
    "mujoco": ("mujoco", "pip install 'seed_rl[mujoco]'"),
    "recall": None,
}


def load(environment: str) -> Family:
    """The family called `environment`, or one made of the user's 'module:factory'.

    Raises ValueError for unknown names, and ImportError that says what to install.
    """
    if factories.is_name(environment):
        return _load_factory(environment)
    if environment not in _FAMILIES:
        raise ValueError(
            f"--environment={environment} is unknown: wanted one of {', '.join(_FAMILIES)}, or "
            "'module:factory', where factory() returns a gymnasium.Env of yours"
        )
    optional = _FAMILIES[environment]
    try:
        # Some are imported only to play.
        if optional is not None and importlib.util.find_spec(optional[0]) is None:
            raise ModuleNotFoundError(f"No module named {optional[0]!r}", name=optional[0])
        family: Family = importlib.import_module(f"seed_rl.envs.{environment}")
    except ModuleNotFoundError as error:
        if optional is None or error.name != optional[0]:
            raise
        raise ImportError(
            f"--environment={environment} needs the package {optional[0]}, which is not "
            f"installed: type {optional[1]}"
        ) from error
    return family


def _load_factory(environment: str) -> Family:
    from seed_rl.envs.gym.factory import FactoryFamily

    return FactoryFamily(environment, factories.find("environment", environment))
