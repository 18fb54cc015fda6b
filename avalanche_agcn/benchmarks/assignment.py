"""Which images go to which experience: pure rules over a label matrix."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Assignment = Literal["rarest", "random"]


def class_blocks(sizes: Sequence[int]) -> list[range]:
    """The contiguous columns of each experience.

    Example:
        >>> class_blocks([4, 2])
        [range(0, 4), range(4, 6)]
    """
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def experience_of_column(sizes: Sequence[int]) -> Tensor:
    """[C]: the experience that owns each column."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def first_relevant(labels: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Split images by the first experience that owns one of their labels.

    Args:
        labels: [N, C] bool, columns in order of appearance.
        sizes: Classes per experience.

    Returns:
        For each experience the positions of its images, ascending. Images without a label are left out.
    """
    first = _relevance(labels, sizes).to(torch.int8).argmax(1)
    return _positions(first.masked_fill(~labels.any(1), -1), len(sizes))


def every_relevant(labels: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Let an image return with every experience that owns one of its labels (see ``first_relevant``)."""
    return [column.nonzero().flatten() for column in _relevance(labels, sizes).T]


def once(
    labels: Tensor, sizes: Sequence[int], *, assignment: Assignment = "rarest", seed: int = 0
) -> list[Tensor]:
    """Give each image to exactly one experience that owns one of its labels.

    The experience is that of one of the image's labels: of its rarest one, counted over all of
    ``labels`` (``"rarest"``; of equally rare ones the first column), or of one drawn at random
    (``"random"``). Where this leaves an experience empty although images with its labels exist, the
    fewest possible images, drawn at random, move there.

    Args:
        labels: [N, C] bool, columns in order of appearance.
        sizes: Classes per experience.
        assignment: The rule.
        seed: Fixes what is drawn.

    Returns:
        For each experience the positions of its images, ascending. Images without a label are left out.
    """
    generator = torch.Generator().manual_seed(seed)
    if assignment == "rarest":
        priority = labels.sum(0).neg().float().expand(labels.shape)
    elif assignment == "random":
        priority = torch.rand(labels.shape, generator=generator)
    else:
        raise ValueError(f"assignment must be 'rarest' or 'random', got {assignment!r}")
    column = priority.masked_fill(~labels, -torch.inf).argmax(1)
    owner = experience_of_column(sizes)[column].masked_fill(~labels.any(1), -1)
    _fill_empty(owner, _relevance(labels, sizes), generator)
    return _positions(owner, len(sizes))


def _relevance(labels: Tensor, sizes: Sequence[int]) -> Tensor:
    """[N, T] bool: whether an experience owns one of the image's labels."""
    return torch.stack([labels[:, block.start : block.stop].any(1) for block in class_blocks(sizes)], 1)


def _positions(owner: Tensor, n_experiences: int) -> list[Tensor]:
    return [(owner == t).nonzero().flatten() for t in range(n_experiences)]


def _fill_empty(owner: Tensor, relevant: Tensor, generator: torch.Generator) -> None:
    """Move images along shortest chains of experiences until no experience that could be filled is empty.

    A chain ends at an experience that can spare an image; each experience on it passes one image on.
    """
    n_experiences = relevant.shape[1]
    for empty in range(n_experiences):
        if (owner == empty).any():
            continue
        for taker, giver in _chain_to_spare_image(empty, owner, relevant):
            candidates = ((owner == giver) & relevant[:, taker]).nonzero().flatten()
            chosen = torch.randint(len(candidates), (), generator=generator)
            owner[candidates[chosen]] = taker


def _chain_to_spare_image(empty: int, owner: Tensor, relevant: Tensor) -> list[tuple[int, int]]:
    """Pairs (taker, giver) from ``empty`` on to an experience with two images or more, or nothing."""
    came_from: dict[int, int] = {empty: empty}
    queue = deque([empty])
    while queue:
        taker = queue.popleft()
        owners = owner[relevant[:, taker] & (owner >= 0)]
        for giver in owners.unique().tolist():
            if giver in came_from:
                continue
            came_from[giver] = taker
            if (owner == giver).sum() > 1:
                chain = [(came_from[giver], giver)]
                while chain[0][0] != empty:
                    chain.insert(0, (came_from[chain[0][0]], chain[0][0]))
                return chain
            queue.append(giver)
    return []
