"""Multi-label continual learning for Avalanche, with AGCN at its heart.

The names of benchmarks, models, training and evaluation can be imported from here. Each submodule is imported
when one of its names is first used, because Avalanche takes seconds to import.
"""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# A warning of Avalanche's import: only its GEM needs such a solver.
warnings.filterwarnings("ignore", "no QP solver found", UserWarning)

_PACKAGES = ("benchmarks", "models", "training", "training.plugins", "evaluation", "experiments")


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` of a package whose public names live in other modules.

    Args:
        package: name of the package.
        homes: for each module, relative to ``avalanche_agcn``, its public names, separated by spaces.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"avalanche_agcn.{home_of[name]}"), name)

    return find, lambda: sorted(home_of)


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        for package in _PACKAGES:
            module = import_module(f"{__name__}.{package}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    names = set(globals())
    for package in _PACKAGES:
        names.update(import_module(f"{__name__}.{package}").__all__)
    return sorted(names)
