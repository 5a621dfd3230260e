"""Environment families by name. A family is imported only when it is asked for."""

from __future__ import annotations

import importlib

from seed_rl import factories
from seed_rl.envs.environment import Family

# Families, each with what its optional dependencies are imported as, and the extra that has them.
_FAMILIES = {
    "atari": ("ale_py", "seed_rl[atari]"),
    "catch": None,
    "dmlab": None,  # says itself what it needs: pip can't install that
    "gym": None,
    "mujoco": ("mujoco", "seed_rl[mujoco]"),
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
    try:
        family: Family = importlib.import_module(f"seed_rl.envs.{environment}")
    except ModuleNotFoundError as error:
        optional = _FAMILIES[environment]
        if optional is None or error.name != optional[0]:
            raise
        raise ImportError(
            f"--environment={environment} needs the package {optional[0]}, which is not "
            f"installed: pip install '{optional[1]}'"
        ) from error
    return family


def _load_factory(environment: str) -> Family:
    from seed_rl.envs.gym.factory import FactoryFamily

    return FactoryFamily(environment, factories.find("environment", environment))
