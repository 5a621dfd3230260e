"""Environment families by name. A family is imported only when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util

from seed_rl.envs.environment import Family

# Families, each with what its optional dependencies are imported as, and what installs them.
_FAMILIES = {
    "atari": ("ale_py", "pip install 'seed_rl[atari]'"),
    "catch": None,
    "football": ("gfootball", "scripts/install_football.sh"),
    "gym": None,
    "recall": None,
}


def load(environment: str) -> Family:
    """The family called `environment`, or one made of the user's 'module:factory'.

    Raises ValueError for unknown names, and ImportError that says what to install.
    """
    module_name, _, factory_name = environment.partition(":")
    if module_name and factory_name:
        return _load_factory(environment, module_name, factory_name)
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


def _load_factory(environment: str, module_name: str, factory_name: str) -> Family:
    from seed_rl.envs.gym.factory import FactoryFamily

    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the user's module is there, and misses one of its own imports
        raise ValueError(
            f"--environment={environment}: found no module {module_name}; start from the folder "
            "that has it, or add that folder to PYTHONPATH"
        ) from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise ValueError(
            f"--environment={environment}: wanted a function or class {factory_name!r} in "
            f"{module.__file__}, saw {factory!r}"
        )
    return FactoryFamily(environment, factory)
