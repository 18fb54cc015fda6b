import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("names", "unwanted"),
    [
        (
            "training.acm training.graph training.losses models.gcn models.word_vectors",
            "avalanche torchvision",
        ),
        ("models.backbones", "avalanche timm efficientnet_lite_pytorch"),
        ("benchmarks.experience", "pycocotools avalanche_agcn.benchmarks.multilabel"),
    ],
)
def test_module_does_not_import_what_it_does_not_need(names, unwanted):
    code = "\n".join(f"import avalanche_agcn.{name}" for name in names.split())
    code += f"\nimport sys\nprint(*({set(unwanted.split())} & sys.modules.keys()))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    imported = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert imported.stdout.strip() == ""


def test_public_names_are_there():
    import avalanche_agcn.benchmarks
    import avalanche_agcn.models
    import avalanche_agcn.training

    for package in (avalanche_agcn.benchmarks, avalanche_agcn.models, avalanche_agcn.training):
        for name in package.__all__:
            assert getattr(package, name).__name__ == name
        with pytest.raises(AttributeError, match="nothing"):
            _ = package.nothing
