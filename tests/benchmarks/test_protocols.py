import inspect
from dataclasses import fields

import pytest

from avalanche_agcn.benchmarks import SplitCOCO, SplitPhotos, SplitScenes, SplitVOC, SplitWIDE
from avalanche_agcn.benchmarks.image_files import ImageOptions
from avalanche_agcn.benchmarks.protocols import Conventions, b_sizes, resolve_protocol


def test_sizes_of_the_published_protocols():
    for first, step, n in ((10, 2, 5), (5, 3, 5), (4, 2, 8)):
        assert b_sizes(first, step, 20) == [first] + n * [step]
    for first, step in ((0, 7), (21, 1), (0, 0)):
        with pytest.raises(ValueError, match=f"'B{first}-C{step}' does not fit 20 classes"):
            b_sizes(first, step, 20)


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("b0-c10", {}, "'paper' or 'B<n>-C<m>', such as 'B0-C10', not 'b0-c10'"),
        ("paper", {"test_images": "some"}, r"test_images must be one of \('seen', 'all'\)"),
        ("paper", {"crowds": True}, "crowds must be one of"),
    ],
)
def test_unknown_protocols_and_settings_are_rejected(name, chosen, message):
    with pytest.raises(ValueError, match=message):
        resolve_protocol(name, Conventions(**chosen), paper_sizes=(40, 10))


@pytest.mark.parametrize("make", [SplitCOCO, SplitWIDE, SplitVOC, SplitPhotos, SplitScenes])
def test_signatures_show_every_argument(make):
    parameters = inspect.signature(make).parameters
    assert not [p for p in parameters.values() if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    conventions = {field.name for field in fields(Conventions)} - {"crowds", "difficult"}
    image_options = {field.name for field in fields(ImageOptions)}
    if make is SplitScenes:  # scenes have a mean of their own, and no files
        image_options -= {"backbone", "mean", "std", "truncated"}
    assert conventions | image_options <= parameters.keys()
    assert ("dataset_root" in parameters) == (make is not SplitScenes)
    assert {name for name in ("crowds", "split_lists", "difficult") if name in parameters} == {
        SplitCOCO: {"crowds", "split_lists"},
        SplitWIDE: {"split_lists"},
        SplitVOC: {"difficult"},
    }.get(make, set())
