"""The base of this package's plugins."""

from typing import Any

from avalanche.core import SupervisedPlugin


class MultiLabelPlugin(SupervisedPlugin):
    """A plugin for multi-hot targets that works with several processes.

    Losses that it adds are means over the global batch if they are computed by `mean_of`. Hooks read the
    model as ``unwrap(strategy.model)``, which is in `DistributedDataParallel` while several processes train.
    State that a resumed run needs is returned by ``state_dict`` and read by ``load_state_dict``, if a plugin
    has any. ``before_training_exp`` runs again when a run resumes within an experience.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**{"supports_distributed": True, **kwargs})
