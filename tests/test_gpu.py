"""A run on a GPU; skipped where there is none."""

import pytest
import torch

from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings
from avalanche_agcn.models import load_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize(
    ("method", "settings"),
    [("agcn", {}), ("agcn", {"amp": "bf16"}), ("streaming_ridge", {"freeze_backbone": True}), ("er", {})],
)
def test_a_run_on_a_gpu_scores_as_on_a_cpu_and_its_model_predicts_there(tmp_path, method, settings):
    made = {
        device: Run(
            make_settings("scenes", SMOKE, method=method, device=device, cache=str(tmp_path), **settings),
            tmp_path / device,
            log=lambda text: None,
        )
        for device in ("cpu", "cuda")
    }
    scores = {device: run.run().summary["mAP"]["last"] for device, run in made.items()}
    assert scores["cuda"] == pytest.approx(scores["cpu"], abs=10)  # percent, of 32 test images
    image = torch.zeros(3, 32, 32)
    on_cpu, on_gpu = (load_model(made["cuda"].folder, device=d).predict(image)[0] for d in made)
    assert on_gpu.probabilities == pytest.approx(on_cpu.probabilities, abs=1e-3)
