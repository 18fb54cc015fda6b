"""The base of this package's plugins."""

from typing import Any

from avalanche.core import SupervisedPlugin


class MultiLabelPlugin(SupervisedPlugin):
    """A plugin for multi-hot targets that works with several processes.

    Losses that it adds are means over the global batch if they are computed by `mean_of`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**{"supports_distributed": True, **kwargs})
