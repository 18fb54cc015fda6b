"""Names that a package imports at first use, because Avalanche takes seconds to import."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_getattr(package: str, *modules: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, which imports its modules until one has the wanted name.

    Args:
        package: the package; its ``__all__`` has the names.
        modules: where they are found, those that take long to import last.
    """

    def getattr_of_package(name: str) -> Any:
        if name in sys.modules[package].__all__:
            for module in modules:
                found = vars(import_module(f"{package}.{module}"))
                if name in found:
                    return found[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattr_of_package
