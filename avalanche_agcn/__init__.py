"""Multi-label continual learning for Avalanche, with AGCN at its heart.

Nothing is imported here: each submodule pulls in only what it needs.
"""

__version__ = "0.1.0"
