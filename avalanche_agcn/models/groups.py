"""Parameters of a model's parts, with a learning rate for each."""

from typing import Any

from torch import nn


def group_parameters(*parts: tuple[nn.Module, float]) -> list[dict[str, Any]]:
    """Groups for an optimizer, made of parts and their learning rates; parts without parameters have none."""
    groups = [{"params": list(part.parameters()), "lr": lr} for part, lr in parts]
    return [group for group in groups if group["params"]]
