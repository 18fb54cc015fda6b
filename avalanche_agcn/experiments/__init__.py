"""What every run shares: settings, the stream loop, saved state, results and tables."""

from typing import TYPE_CHECKING

from avalanche_agcn import lazy_names

if TYPE_CHECKING:
    from avalanche_agcn.experiments.continued import LoadedRun, load_run

__all__ = ["LoadedRun", "load_run"]
__getattr__, __dir__ = lazy_names(__name__, {"experiments.continued": "LoadedRun load_run"})
