"""What the models share."""

from torch import nn


def count_features(backbone: nn.Module) -> int:
    """Length of the vectors a backbone gives, from its attribute ``num_features``.

    Raises:
        ValueError: if the backbone has no such attribute.
    """
    count = getattr(backbone, "num_features", None)
    if not isinstance(count, int):
        raise ValueError(
            f"{type(backbone).__name__} does not say how long its features are. Take a backbone "
            "from create_backbone(...), wrap yours in Backbone(layers, num_features=...), or set "
            "its attribute num_features."
        )
    return count
