"""Plots of streams under B protocols."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from declare import Stream
from matplotlib.figure import Figure

from avalanche_agcn.experiments import plots
from avalanche_agcn.experiments.results import Results

IN_CURVES = (
    "multitask_ridge",
    "streaming_ridge",
    "l3a",
    "agcn statistics",
    "er",
    "csc",
    "agcn",
    "ewc",
    "lwf",
    "finetuning",
)


def plots_of(
    stream: Stream, results: Mapping[str, Sequence[Results]]
) -> dict[str, tuple[str, Callable[[], Figure]]]:
    """Caption of each plot and a function that draws it, by file name."""
    made: dict[str, tuple[str, Callable[[], Figure]]] = {}
    for part, rows in results.items():
        shown = [result for result in rows if result.label in IN_CURVES]
        caption = f"{stream.title}, {stream.parts[part].title}: mAP on the classes seen"
        made[f"{stream.name}-{part}-mAP-after-each-experience"] = (caption, partial(plots.curves, shown))
    return made
