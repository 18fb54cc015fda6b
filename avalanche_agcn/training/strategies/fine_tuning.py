"""Fine-Tuning, the lower bound."""

from avalanche_agcn.training.strategies.base import MultiLabelTemplate


class FineTuning(MultiLabelTemplate):
    """Trains on each experience as it comes and does nothing against forgetting.

    The paper's lower bound. Args: see `MultiLabelTemplate`.
    """
