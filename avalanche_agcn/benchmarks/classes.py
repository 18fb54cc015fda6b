"""Which classes there are, in which order, and how many an experience adds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def check_class_names(class_names: Sequence[str] | None, n_classes: int) -> list[str]:
    """Names of the columns, ``"class 0"`` and so on by default.

    Raises:
        ValueError: If a name is missing or repeated.
    """
    if class_names is None:
        return [f"class {column}" for column in range(n_classes)]
    names = [str(name) for name in class_names]
    if len(names) != n_classes or len(set(names)) != n_classes:
        raise ValueError(f"class_names must name each of the {n_classes} columns differently, got {names}")
    return names


def class_counts(
    n_classes: int, n_experiences: int | None, classes_per_experience: Sequence[int] | None
) -> list[int]:
    """Classes of each experience, from either way of asking for them.

    Raises:
        ValueError: If the request is empty, contradicts itself or does not fit ``n_classes``.
    """
    if classes_per_experience is not None:
        sizes = [int(size) for size in classes_per_experience]
        if n_experiences not in (None, len(sizes)):
            raise ValueError(
                f"n_experiences={n_experiences} contradicts classes_per_experience={sizes}; give one"
            )
        if min(sizes, default=0) < 1 or sum(sizes) != n_classes:
            raise ValueError(
                f"classes_per_experience={sizes} must be positive and sum to the {n_classes} classes, "
                f"not to {sum(sizes)}"
            )
        return sizes
    if n_experiences is None:
        raise ValueError("say how to split the classes: n_experiences= or classes_per_experience=")
    if not 1 <= n_experiences <= n_classes:
        raise ValueError(
            f"n_experiences={n_experiences} must be between 1 and the number of classes, {n_classes}"
        )
    size, rest = divmod(n_classes, n_experiences)
    if rest:
        example = [size + (t < rest) for t in range(n_experiences)]
        raise ValueError(
            f"{n_classes} classes do not split equally into {n_experiences} experiences; "
            f"say how with classes_per_experience=, for example {example}"
        )
    return [size] * n_experiences


def resolve_class_order(class_order: Sequence[int | str] | None, class_names: Sequence[str]) -> list[int]:
    """Columns in order of appearance, from columns or names.

    Raises:
        ValueError: If a class is unknown, missing or repeated.
    """
    if class_order is None:
        return list(range(len(class_names)))
    column_of = {name: column for column, name in enumerate(class_names)}
    order = [column_of.get(c, -1) if isinstance(c, str) else int(c) for c in class_order]
    unknown = [c for c, column in zip(class_order, order, strict=True) if not 0 <= column < len(class_names)]
    if unknown:
        raise ValueError(
            f"class_order has unknown classes {unknown}; known are columns 0 to "
            f"{len(class_names) - 1}, or the names {list(class_names)}"
        )
    missing = [class_names[c] for c in sorted(set(range(len(class_names))) - set(order))]
    repeated = sorted({class_names[c] for c in order if order.count(c) > 1})
    if missing or repeated:
        raise ValueError(
            f"class_order must have each of the {len(class_names)} classes once: "
            f"missing {missing}, repeated {repeated}"
        )
    return order


def select_classes(
    names: Sequence[str], counts: Tensor, n_classes: int, class_order: Sequence[int | str] | None
) -> list[int]:
    """Choose classes by how often they occur, or by name.

    Args:
        names: All classes there are.
        counts: Images that show each.
        n_classes: How many to choose.
        class_order: Names choose exactly these, in this order. Numbers order the ``n_classes`` most frequent
            classes, which stand in the order of ``names`` by default.

    Returns:
        Positions in ``names``, in order of appearance.

    Raises:
        ValueError: If there are fewer classes than asked for, or the order does not fit.
    """
    if not 1 <= n_classes <= len(names):
        raise ValueError(f"n_classes={n_classes} must be between 1 and the {len(names)} classes of the data")
    if class_order is not None and all(isinstance(c, str) for c in class_order):
        chosen = sorted(names.index(c) for c in set(class_order) if c in names)  # type: ignore[arg-type]
        unknown = sorted(set(class_order).difference(names))  # type: ignore[type-var]
        if unknown:
            raise ValueError(f"class_order has unknown categories {unknown}; known are {list(names)}")
        if len(class_order) != n_classes:
            raise ValueError(f"class_order names {len(class_order)} classes, but n_classes={n_classes}")
    else:
        chosen = sorted(torch.sort(counts, descending=True, stable=True).indices[:n_classes].tolist())
    order = resolve_class_order(class_order, [names[c] for c in chosen])
    return [chosen[c] for c in order]
