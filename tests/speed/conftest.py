"""Imports the scripts of ``speed/`` by name, as they import each other."""

import importlib
import sys
from pathlib import Path

import pytest

SPEED = Path(__file__).parents[2] / "speed"


@pytest.fixture
def load(monkeypatch):
    """A function that imports a script by name; the scripts are removed from `sys.modules` afterwards."""
    monkeypatch.syspath_prepend(str(SPEED))
    yield importlib.import_module
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "").parent == SPEED:
            del sys.modules[name]
