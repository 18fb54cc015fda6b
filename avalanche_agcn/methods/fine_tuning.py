"""Fine-Tuning: plain training on the stream."""

from avalanche_agcn.training.template import MultiLabelTemplate


class FineTuning(MultiLabelTemplate):
    """Does nothing against forgetting: the paper's lower bound."""
