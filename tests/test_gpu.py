"""What only a GPU computes; skipped where there is none.

test_fake_gpu.py covers what depends only on the device of a tensor. No other test covers these: copies of
batches from pinned memory; autocast on the device, and float16 with its scaled gradients; random numbers of
the device in a state; kernels of the device in features, sums and predictions; several processes with NCCL.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from avalanche_agcn.evaluation.functional import average_precision
from avalanche_agcn.experiments import checkpoint
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings
from avalanche_agcn.models import load_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

POINTS = 10  # percent, of 32 test images
CASES = [
    *({"method": method} for method in METHODS),
    *({"method": "agcn", "amp": amp} for amp in ("bf16", "fp16")),
    {"method": "agem", "amp": "fp16"},
    {"method": "agcn", "preset": "statistics"},
    {"method": "agcn", "preset": "official"},
    {"method": "streaming_ridge", "statistics": "compact"},
    {"method": "agcn", "preset": "statistics", "max_gaussians": 1},
    {"method": "er", "negatives": ["memory", "statistics"], "num_workers": 1},
    {"method": "lwf", "pseudo_labels": True, "loss": "asl"},
    {"method": "streaming_ridge", "freeze_backbone": True},
    {"method": "agcn", "freeze_backbone": True, "num_workers": 1},
]


def make_run(out, device, case, **options):
    settings = make_settings("scenes", SMOKE, device=device, cache=str(out / "cache"), **case)
    return Run(settings, out / device, log=lambda text: None, **options)


def last_score(results):
    return results.summary["mAP"]["last"]


def name_of(case):
    return "-".join(f"{value}" for value in case.values())


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_run_on_a_gpu_scores_as_on_a_cpu_and_its_model_predicts_there(tmp_path, case):
    scores = {device: last_score(make_run(tmp_path, device, case).run()) for device in ("cpu", "cuda")}
    assert scores["cuda"] == pytest.approx(scores["cpu"], abs=POINTS)
    folder = make_run(tmp_path, "cuda", case).folder
    image = torch.zeros(3, 32, 32)
    on_cpu, on_gpu = (load_model(folder, device=device).predict(image)[0] for device in ("cpu", "cuda"))
    tolerance = 1e-3 if "amp" not in case else 0.05
    assert on_gpu.probabilities == pytest.approx(on_cpu.probabilities, abs=tolerance)


@pytest.mark.parametrize("case", CASES, ids=name_of)
# In the first experience, before and after its evaluation, and in the second.
@pytest.mark.parametrize("n_saves", [2, 4, 5, 7])
def test_a_run_on_a_gpu_resumes_from_a_state_whose_tensors_are_on_the_cpu(
    tmp_path, case, n_saves, monkeypatch
):
    case = {**case, "checkpoint_minutes": 0.0}
    whole = last_score(make_run(tmp_path / "whole", "cuda", case).run())
    save, saves = checkpoint.save_state, itertools.count(1)

    def save_and_stop(path, state):
        save(path, state)
        if next(saves) == n_saves:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_state", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            make_run(tmp_path, "cuda", case).run()
    assert last_score(make_run(tmp_path, "cuda", case, resume=True).run()) == pytest.approx(whole, abs=POINTS)


def test_random_numbers_of_the_device_continue_and_those_of_missing_devices_are_ignored():
    state = checkpoint.random_state()
    expected = torch.rand(3, device="cuda")
    checkpoint.set_random_state(state)
    assert torch.equal(torch.rand(3, device="cuda"), expected)
    more = {**state, "cuda": [*state["cuda"], state["cuda"][0]]}  # of a machine with one more
    checkpoint.set_random_state(more)
    assert torch.equal(torch.rand(3, device="cuda"), expected)


def test_scores_on_the_device_are_ranked():
    scores, targets = torch.rand(20, 3), (torch.rand(20, 3) < 0.5).float()
    found = average_precision(scores.cuda(), targets.cuda())
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), average_precision(scores, targets))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("method", METHODS)
def test_two_processes_with_nccl_score_as_one(tmp_path, method):
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = str(Path(__file__).parents[1] / "runs" / "split_coco.py")
    options = ["--smoke", "--method", method, "--device", "cuda", "--out", str(tmp_path / "two")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, *command, program, *options], env=environment, check=True, timeout=600)
    results = json.loads((tmp_path / "two" / f"{method}-seed0" / "results.json").read_text())
    expected = last_score(make_run(tmp_path, "cuda", {"method": method}).run())
    assert results["summary"]["mAP"]["last"] == pytest.approx(expected, abs=POINTS)
