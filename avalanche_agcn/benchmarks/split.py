"""Which classes and images go to which experience: pure functions over names and a label matrix."""

import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from types import NoneType
from typing import Literal

import torch
from torch import Tensor

from avalanche_agcn.checks import check_choice, listed, same_spelling

Assignment = Literal["rarest", "random"]
ClassOrder = str | Sequence[int | str]
NAMED_ORDER = re.compile(r"data|alphabetical|shuffled-(\d{1,18})")
TestImages = Literal["seen", "all"]
UNKNOWN = -1  # in place of the column of a name that no class has


BLOCK_CELLS = 2**20
"""Cells that are converted at a time, so that no matrix of another type exists as a whole."""


def row_blocks(matrix: Tensor) -> Iterator[slice]:
    """The rows of a matrix, about `BLOCK_CELLS` of its cells at a time."""
    n_rows = max(1, BLOCK_CELLS // max(1, matrix.shape[1]))
    for start in range(0, len(matrix), n_rows):
        yield slice(start, start + n_rows)


def count_positives(labels: Tensor) -> Tensor:
    """Number of positives of each class, from [N, C] of 0 and 1; torch would first convert all to int64."""
    counts = torch.zeros(labels.shape[1], dtype=torch.long)
    for rows in row_blocks(labels):
        counts += labels[rows].sum(0).long()
    return counts


def has_label(labels: Tensor) -> Tensor:
    """Whether each image has a label, [N] bool, from [N, C] of 0 and 1; like `count_positives`, in blocks."""
    return _relevance(labels, [labels.shape[1]]).flatten()


def check_classes_present(labels: Tensor, class_names: Sequence[str], *, except_images: Tensor) -> None:
    """Raise a ValueError that names the classes without a positive; ``except_images``, [N], do not count."""
    n_others = count_positives(labels[except_images])
    shown = (count_positives(labels) > n_others).tolist()
    absent = [name for name, is_shown in zip(class_names, shown, strict=True) if not is_shown]
    if absent:
        raise ValueError(
            f"No training image shows [{listed(map(repr, absent))}]; use more images, fewer classes or a "
            "smaller validation_size."
        )


def experience_sizes(
    n_classes: int, n_experiences: int | None, classes_per_experience: Sequence[int] | None
) -> list[int]:
    """Number of classes of each experience, from either of the two arguments."""
    if classes_per_experience is not None:
        sizes = [int(size) for size in classes_per_experience]
        if n_experiences not in (None, len(sizes)):
            raise ValueError(f"{n_experiences=} contradicts classes_per_experience={sizes}; leave one out.")
        if min(sizes, default=0) < 1 or sum(sizes) != n_classes:
            raise ValueError(
                f"classes_per_experience={sizes} must be positive and sum to the {n_classes} classes, not to "
                f"{sum(sizes)}."
            )
        return sizes
    if n_experiences is None:
        raise ValueError("Pass n_experiences= or classes_per_experience=, to split the classes.")
    sizes = nearly_equal_sizes(n_classes, n_experiences)
    if sizes[0] != sizes[-1]:
        raise ValueError(
            f"{n_classes} classes do not split equally into {n_experiences} experiences; choose numbers that "
            f"do, or pass classes_per_experience, for example {sizes}."
        )
    return sizes


def nearly_equal_sizes(n_classes: int, n_experiences: int) -> list[int]:
    """Number of classes of each experience, as equal as possible, the larger ones first."""
    if not 1 <= n_experiences <= n_classes:
        raise ValueError(f"{n_experiences=} must be between 1 and the number of classes, {n_classes}.")
    size, rest = divmod(n_classes, n_experiences)
    return [size + (t < rest) for t in range(n_experiences)]


def choose_classes(
    names: Sequence[str], counts: Tensor, n_classes: int | None, class_order: ClassOrder
) -> list[int]:
    """Positions, ascending, of the classes named in ``class_order``, else of the most frequent ones.

    ``counts`` are the numbers of images of each class; ``n_classes`` None means all. An order that does not
    list names only reorders.
    """
    n_classes = len(names) if n_classes is None else n_classes
    if not 1 <= n_classes <= len(names):
        raise ValueError(f"{n_classes=} must be between 1 and the {len(names)} classes of the data.")
    if not is_order_of_names(class_order):
        return sorted(torch.sort(counts, descending=True, stable=True).indices[:n_classes].tolist())
    wanted = {same_spelling(str(name)) for name in class_order}
    unknown = sorted(wanted.difference(names))
    if unknown:
        raise ValueError(
            f"class_order has unknown classes [{listed(map(repr, unknown))}]; known are {listed(names)}."
        )
    if len(class_order) != n_classes:
        raise ValueError(f"class_order names {len(class_order)} classes, but n_classes={n_classes}.")
    return [position for position, name in enumerate(names) if name in wanted]


def is_order_of_names(class_order: ClassOrder | None) -> bool:
    """Whether a class order lists names, and so chooses the classes."""
    return not isinstance(class_order, (str, NoneType)) and all(isinstance(c, str) for c in class_order)


def resolve_class_order(class_order: ClassOrder, class_names: Sequence[str]) -> list[int]:
    """Columns in order of appearance, from columns or names, or an order by name; see `Protocol`."""
    if isinstance(class_order, str):
        return _named_order(class_order, class_names)
    column_of = {name: column for column, name in enumerate(class_names)}
    order = [column_of.get(same_spelling(c), UNKNOWN) if isinstance(c, str) else int(c) for c in class_order]
    columns = range(len(class_names))
    if sorted(order) != list(columns):
        unknown = [c for c, column in zip(class_order, order, strict=True) if column not in columns]
        counts = Counter(order)
        missing = [class_names[c] for c in columns if counts[c] == 0]
        repeated = [class_names[c] for c in columns if counts[c] > 1]
        raise ValueError(
            f"class_order must have each of [{listed(map(repr, class_names))}] once, or its column, but "
            f"[{listed(map(repr, unknown))}] are unknown, [{listed(map(repr, missing))}] missing and "
            f"[{listed(map(repr, repeated))}] repeated."
        )
    return order


def _named_order(order: str, class_names: Sequence[str]) -> list[int]:
    match = NAMED_ORDER.fullmatch(order)
    if match is None:
        raise ValueError(
            "class_order must be 'data', 'alphabetical', 'shuffled-N' with a seed N, or a list of classes, "
            f"not {order!r}."
        )
    if match[1] is not None:
        generator = torch.Generator().manual_seed(int(match[1]))
        return torch.randperm(len(class_names), generator=generator).tolist()
    columns = list(range(len(class_names)))
    if order == "data":
        return columns
    return sorted(columns, key=lambda column: class_names[column])


def own_columns(sizes: Sequence[int]) -> list[range]:
    """The contiguous columns of each experience: ``[range(0, 4), range(4, 6)]`` for sizes 4 and 2."""
    return [range(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


# The rules below take `labels`, [N, C] of 0 and 1 with columns in order of appearance, and `sizes`, the
# number of classes of each experience. They return the positions of each experience's images, ascending.
# They skip images without a label.


def assign_first(labels: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Give each image to the first experience that owns one of its labels."""
    relevant = _relevance(labels, sizes)
    first = relevant.to(torch.int8).argmax(1)
    return _positions(first.masked_fill(~relevant.any(1), -1), len(sizes))


def assign_repeatedly(labels: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Give each image to every experience that owns one of its labels."""
    return [column.nonzero().flatten() for column in _relevance(labels, sizes).T]


def assign_once(
    labels: Tensor,
    sizes: Sequence[int],
    *,
    assignment: Assignment = "rarest",
    seed: int = 0,
    except_images: Tensor | None = None,
) -> list[Tensor]:
    """Give each image to exactly one experience that owns one of its labels, but not ``except_images``, [N].

    It is the experience of the image's rarest label, counted over all of ``labels`` (``"rarest"``; of equally
    rare ones the first column), or of one of its labels drawn at random (``"random"``). If this leaves an
    experience empty although images with its labels exist, the fewest possible images, drawn at random, move.
    """
    check_choice("assignment", assignment, Assignment)
    generator = torch.Generator().manual_seed(seed)
    left_out = torch.zeros(len(labels), dtype=torch.bool) if except_images is None else except_images
    rarity = (count_positives(labels[left_out]) - count_positives(labels)).float()
    column = torch.empty(len(labels), dtype=torch.long)
    for rows in row_blocks(labels):
        block = labels[rows]
        is_random = assignment == "random"
        priority = torch.rand(block.shape, generator=generator) if is_random else rarity.expand(block.shape)
        # The label of highest priority decides; argmax takes the first of equal ones. Images without a label
        # have −inf everywhere and so get column 0, until the mask below removes them.
        column[rows] = priority.masked_fill(block == 0, -torch.inf).argmax(1)
    experience_of_column = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    relevant = _relevance(labels, sizes).masked_fill_(left_out[:, None], False)
    owner = experience_of_column[column].masked_fill(~relevant.any(1), -1)
    _fill_empty(owner, relevant, generator)
    return _positions(owner, len(sizes))


def _relevance(labels: Tensor, sizes: Sequence[int]) -> Tensor:
    """[N, T] bool: whether an experience owns one of the image's labels."""
    relevant = torch.empty(len(labels), len(sizes), dtype=torch.bool)
    for rows in row_blocks(labels):
        for t, own in enumerate(own_columns(sizes)):
            relevant[rows, t] = labels[rows, own.start : own.stop].any(1)
    return relevant


def _positions(owner: Tensor, n_experiences: int) -> list[Tensor]:
    return [(owner == t).nonzero().flatten() for t in range(n_experiences)]


def _fill_empty(owner: Tensor, relevant: Tensor, generator: torch.Generator) -> None:
    """Move images until every experience has one, if it can.

    If every image that an empty experience could take is the only one of its owner, taking it would empty
    another experience. Then images move along a chain: each experience on it passes one image on, and the
    last one has an image to spare. (An augmenting path, as in bipartite matching; the shortest one moves the
    fewest images.) ``owner``, [N], is the experience of each image, −1 for none; for ``relevant`` see
    `_relevance`.
    """
    for empty in range(relevant.shape[1]):
        if (owner == empty).any():
            continue
        # A giver that loses its only image is the taker of the next pair, so that no experience stays empty.
        for taker, giver in pairwise(_chain_to_spare_image(empty, owner, relevant)):
            candidates = ((owner == giver) & relevant[:, taker]).nonzero().flatten()
            chosen = torch.randint(len(candidates), (), generator=generator)
            owner[candidates[chosen]] = taker


def _chain_to_spare_image(empty: int, owner: Tensor, relevant: Tensor) -> list[int]:
    """Experiences from ``empty`` to one with two images or more, each taking from the next; [] if none.

    Breadth-first search over experiences: an edge leads from a taker to each experience that has an image
    with one of the taker's labels.
    """
    reached, chains = {empty}, deque([[empty]])
    while chains:
        chain = chains.popleft()
        owners = owner[relevant[:, chain[-1]] & (owner >= 0)]
        for giver in owners.unique().tolist():
            if giver in reached:
                continue
            if (owner == giver).sum() > 1:
                return [*chain, giver]
            reached.add(giver)
            chains.append([*chain, giver])
    return []
