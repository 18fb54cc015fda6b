import inspect

import pytest

from avalanche_agcn.benchmarks import SplitCOCO, SplitScenes, SplitVOC, SplitWIDE
from avalanche_agcn.benchmarks.protocols import b_sizes, resolve_protocol


def test_sizes_of_the_published_protocols():
    for first, step, n in ((10, 2, 5), (5, 3, 5), (4, 2, 8)):
        assert b_sizes(first, step, 20) == [first] + n * [step]
    for first, step in ((0, 7), (21, 1), (0, 0)):
        with pytest.raises(ValueError, match=f"'B{first}-C{step}' does not fit 20 classes"):
            b_sizes(first, step, 20)


@pytest.mark.parametrize(
    ("name", "explicit", "error", "message"),
    [
        ("b0-c10", {}, ValueError, "'paper' or 'B<n>-C<m>', such as 'B0-C10', not 'b0-c10'"),
        ("paper", {"test_images": "some"}, ValueError, r"test_images must be one of \('seen', 'all'\)"),
        ("paper", {"crowds": True}, ValueError, "crowds must be one of"),
        ("paper", {"repeat": True}, TypeError, "no setting repeat here, only assignment, class_order"),
    ],
)
def test_unknown_protocols_and_settings_are_rejected(name, explicit, error, message):
    with pytest.raises(error, match=message):
        resolve_protocol(name, paper_sizes=(40, 10), **explicit)


@pytest.mark.parametrize("make", [SplitCOCO, SplitWIDE, SplitVOC, SplitScenes])
def test_shared_arguments_are_in_every_signature(make):
    shared = {"protocol", "n_classes", "n_experiences", "class_order", "seed"}
    shared |= set() if make is SplitScenes else {"dataset_root", "backbone"}  # scenes have their own mean
    assert shared <= inspect.signature(make).parameters.keys()
