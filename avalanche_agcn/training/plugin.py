"""The base of this package's plugins."""

from typing import Any, TypeVar

from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate

from avalanche_agcn.benchmarks.experience import check_strategy

Kind = TypeVar("Kind")


class MultiLabelPlugin(SupervisedPlugin):
    """A plugin for multi-hot targets that works with several processes.

    Losses that it adds are means over the global batch if they are computed by `mean_of`. Hooks read the
    model as ``unwrap(strategy.model)``, which is in `DistributedDataParallel` while several processes train.
    State that a resumed run needs is returned by ``state_dict`` and read by ``load_state_dict``, if a plugin
    has any. ``before_training_exp`` runs again when a run resumes within an experience. A plugin
    with a state belongs to the first strategy that trains with it.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**{"supports_distributed": True, **kwargs})

    def before_training(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Reject a plugin that has learned from another strategy."""
        if hasattr(self, "state_dict"):
            check_owner(self, strategy)

    def before_train_dataset_adaptation(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Check metrics, criterion and normalisation, also of a strategy that is not this package's."""
        check_strategy(strategy)

    def before_eval(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Check the metrics."""
        check_strategy(strategy)


def find_plugin(strategy: SupervisedTemplate, kind: type[Kind]) -> Kind | None:
    """The first plugin of a class that a strategy has, or None."""
    return next((plugin for plugin in strategy.plugins if isinstance(plugin, kind)), None)


def check_owner(part: Any, strategy: Any) -> None:
    """Raise a ValueError if a part with a state, such as a plugin or a memory, is of another strategy.

    Both are marked with the same object. Copies of a strategy share a copy of it, so they can be trained.
    """
    mark = vars(strategy).setdefault("_mark_of_parts", object())
    if vars(part).setdefault("_mark_of_strategy", mark) is not mark:
        raise ValueError(
            f"This {type(part).__name__} has the state of another strategy, which would mix with that of the "
            f"{type(strategy).__name__}: make a new one for each strategy, and load_state_dict(...) to take "
            "over a state."
        )
