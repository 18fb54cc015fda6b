"""Results as runs leave them, without a run."""

import pytest

from avalanche_agcn.experiments.results import METRICS, Results

NAMES = ["person", "bicycle", "car", "motorcycle"]


@pytest.fixture(scope="session")
def make_result():
    """A function that makes results of four classes in two experiences, or of those that are given."""

    def make(method="agcn", seed=0, last=50.0, benchmark="SplitScenes", settings=None, **changes):
        content = {
            "benchmark": benchmark,
            "method": method,
            "seed": seed,
            "settings": settings or {},
            "class_names": NAMES,
            "classes_per_experience": [2, 2],
            "nested": {metric: [[80.0], [60.0, last]] for metric in METRICS},
            "per_class_ap": dict.fromkeys(NAMES, 50.0),
            "seconds": {"train": 60.0, "eval": 40.0, "total": 100.0 + seed},
            "environment": {},
        }
        return Results(**content | changes)

    return make
