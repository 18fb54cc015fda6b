"""Scores that the AGCN paper reports (Du et al., 2022, Tables 1 to 3), in percent.

They are the paper's, never ours. The paper does not say which score "after the whole data stream" is; the
authors' program computes the mean over the nested test sets, and forgetting relative to the first score.
"""

from __future__ import annotations

from typing import NamedTuple


class Scores(NamedTuple):
    """Scores of one method and, where the paper gives it, the forgetting of each."""

    mAP: float
    CF1: float
    OF1: float
    forgetting: tuple[float, float, float] | None = None


TABLE_1: dict[str, dict[str, Scores]] = {
    "SplitWIDE": {
        "multitask": Scores(66.17, 61.45, 71.57),
        "finetuning": Scores(20.33, 19.10, 35.72, (40.85, 31.20, 15.10)),
        "ewc": Scores(22.03, 22.78, 35.70, (34.86, 28.18, 15.17)),
        "lwf": Scores(29.46, 29.64, 42.69, (20.26, 18.99, 5.73)),
        "agem": Scores(32.47, 33.28, 38.93, (16.42, 15.71, 9.73)),
        "er": Scores(34.03, 34.94, 39.37, (15.15, 11.80, 8.61)),
        "prs": Scores(37.93, 21.12, 15.64, (13.59, 51.09, 62.90)),
        "scr": Scores(35.34, 35.47, 41.92, (14.26, 10.17, 8.04)),
        "agcn": Scores(41.12, 38.27, 43.27, (11.22, 5.43, 4.28)),
    },
    "SplitCOCO": {
        "multitask": Scores(65.85, 61.79, 66.27),
        "finetuning": Scores(9.83, 10.54, 28.83, (58.04, 63.54, 20.60)),
        "ewc": Scores(12.20, 12.50, 29.67, (45.61, 55.44, 19.85)),
        "lwf": Scores(19.95, 21.69, 40.68, (41.16, 39.85, 11.43)),
        "agem": Scores(23.31, 27.25, 37.94, (34.52, 18.92, 12.94)),
        "er": Scores(25.03, 30.54, 38.38, (33.46, 17.28, 12.34)),
        "prs": Scores(28.81, 18.40, 13.86, (30.90, 54.36, 52.51)),
        "scr": Scores(25.75, 30.63, 39.10, (32.02, 15.98, 11.96)),
        "agcn": Scores(34.11, 35.49, 42.37, (23.71, 14.79, 8.16)),
    },
}
"""Table 1: every method on both benchmarks."""

STREAMS = {"SplitWIDE": (21, 7), "SplitCOCO": (40, 10)}
"""Classes and experiences of both: results of other streams are not to be compared with the paper's."""

TABLE_2: dict[bool, Scores] = {
    False: Scores(31.52, 30.37, 34.87),
    True: Scores(34.11, 35.49, 42.37),
}
"""Table 2, Split-COCO: without and with the blocks R and Q."""

TABLE_3: dict[tuple[float, float, float], Scores] = {
    (0.05, 0.95, 0.0): Scores(29.90, 31.80, 37.12, (29.24, 24.88, 19.67)),
    (0.07, 0.93, 0.0): Scores(30.99, 32.03, 39.31, (28.28, 22.55, 13.88)),
    (0.09, 0.91, 0.0): Scores(29.71, 32.71, 38.91, (29.97, 21.79, 16.49)),
    (0.07, 0.93, 1e4): Scores(33.05, 33.31, 41.04, (26.41, 20.99, 11.38)),
    (0.07, 0.93, 1e5): Scores(34.11, 35.49, 42.37, (23.71, 14.79, 8.16)),
    (0.07, 0.93, 1e6): Scores(33.71, 33.05, 42.62, (25.69, 21.30, 7.89)),
}
"""Table 3, Split-COCO: by the loss weights λ₁, λ₂, λ₃."""
