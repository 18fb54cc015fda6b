"""Multi-label continual learning for Avalanche, with AGCN at its heart.

The names of benchmarks, models, training and evaluation can be imported from here. Each submodule is imported
when one of its names is first used, because Avalanche takes seconds to import.
"""

import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Of Avalanche's import: only its GEM needs one.
warnings.filterwarnings("ignore", "no QP solver found", UserWarning)

_LAYERS = ("benchmarks", "models", "training", "evaluation", "training.plugins")


def lazy_getattr(package: str, *modules: str) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for the names in ``__all__`` of a package.

    It imports the modules, those that take long to import last, until one has the wanted name.
    """

    def find(name: str) -> Any:
        if name in sys.modules[package].__all__:
            for module in modules:
                found = vars(import_module(f"{package}.{module}"))
                if name in found:
                    return found[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        for layer in _LAYERS:
            module = import_module(f"{__name__}.{layer}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    names = (name for layer in _LAYERS for name in import_module(f"{__name__}.{layer}").__all__)
    return sorted({*globals(), *names})
