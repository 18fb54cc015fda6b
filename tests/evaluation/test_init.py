"""Names are imported when they are used."""

import subprocess
import sys

import pytest

import avalanche_agcn.evaluation as evaluation


@pytest.mark.parametrize("name", evaluation.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(evaluation, name).__name__ == name


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'accuracy'"):
        evaluation.accuracy  # noqa: B018


def test_maths_and_standalone_metrics_do_not_load_avalanche():
    code = (
        "import sys\n"
        "import avalanche_agcn.evaluation.functional\n"
        "from avalanche_agcn.evaluation import MeanAveragePrecision, NestedMetric\n"
        "print([name for name in ('avalanche', 'torchvision', 'matplotlib') if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
