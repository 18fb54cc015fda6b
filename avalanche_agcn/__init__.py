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

# A warning of Avalanche's import: only its GEM needs such a solver.
warnings.filterwarnings("ignore", "no QP solver found", UserWarning)

_LAYERS = ("benchmarks", "models", "training", "evaluation", "training.plugins")


def lazy_getattr(package: str, *modules: str) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for the names in ``__all__`` of a package, or of its modules if it has none.

    It imports the modules, those that take long to import last, until one has the wanted name.
    """

    def find(name: str) -> Any:
        if not name.startswith("_") and name in getattr(sys.modules[package], "__all__", [name]):
            for path in modules:
                module = import_module(f"{package}.{path}")
                if name in getattr(module, "__all__", vars(module)):
                    return getattr(module, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


__getattr__ = lazy_getattr(__name__, *_LAYERS)


def __dir__() -> list[str]:
    names = (name for layer in _LAYERS for name in import_module(f"{__name__}.{layer}").__all__)
    return sorted({*globals(), *names})
