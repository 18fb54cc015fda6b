"""Pieces of experiences, as Avalanche's ``split_online_stream`` makes them."""

from typing import Any

from avalanche_agcn.models.growing import origin_of


def refuse_piece(experience: Any, method: str) -> None:
    """Say that a method needs whole experiences, if this is not one.

    Raises:
        ValueError: if it is a piece.
    """
    if origin_of(experience) is not experience:
        raise ValueError(
            f"{method} sums up each experience at its end, but this is a piece of one, of "
            f"{len(experience.dataset)} images, from an online stream. Train on the benchmark's own "
            "train_stream with train_epochs=1: that is online too, batch by batch."
        )
