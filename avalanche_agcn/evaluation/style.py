"""Colours, markers and lines of curves, without Matplotlib, which takes long to import."""

from typing import NamedTuple

# Okabe and Ito's palette, without yellow, which is too light for lines. Each colour has its own marker, and
# another line style when the colours repeat.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":")


class Style(NamedTuple):
    """Appearance of a curve: more than a colour, for colour-blind readers and for print."""

    colour: str
    marker: str
    line: str = "-"


def default_style(k: int) -> Style:
    """Return the style of curve number k, for curves without one of their own."""
    return Style(COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)], LINES[k // len(COLOURS) % len(LINES)])
