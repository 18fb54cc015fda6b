"""Where a run was made: versions, commit, hardware."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("avalanche-agcn", "avalanche-lib", "torch", "torchvision", "numpy", "pycocotools")


def describe_environment() -> dict[str, Any]:
    """Versions of what matters, the commit of the checkout if there is one, and the hardware."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The checkout's commit, with ``+`` if files were changed."""
    folder = Path(__file__).parent
    try:
        git = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=12"]
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
