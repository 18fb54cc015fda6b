"""Runs on a device that rejects tensors of two devices, as a GPU does, and computes what the CPU computes.

What needs a real GPU is in test_gpu.py: pinned memory, half precision, NCCL, and random numbers there.
"""

import importlib.util
import itertools
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torchvision.transforms import v2

from avalanche_agcn.experiments import checkpoint
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings
from avalanche_agcn.models import MultiLabelClassifier, create_backbone, load_model, save_model
from avalanche_agcn.models.export import export_model
from avalanche_agcn.training.statistics.compact import CompactStatistics
from avalanche_agcn.training.statistics.features import FeatureStatistics

TRANSFORM = v2.Compose(
    [
        v2.ToImage(),
        v2.Resize((32, 40)),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5, 0.4, 0.3], [0.25] * 3),
        v2.ToPureTensor(),
    ]
)
AFTER_TRAINING = 4  # saves: one for each of 3 batches and one after training; evaluation follows
SHORT = [
    {"method": "agcn", "preset": "statistics"},
    {"method": "streaming_ridge", "statistics": "compact"},
]
LONG = [
    *({"method": method} for method in METHODS),
    {"method": "agcn", "preset": "official"},
    {"method": "agcn", "preset": "statistics", "max_gaussians": 1},
    {"method": "er", "negatives": ["memory", "statistics"], "num_workers": 1},
    {"method": "lwf", "pseudo_labels": True, "loss": "asl"},
    {"method": "streaming_ridge", "freeze_backbone": True},
    {"method": "agcn", "freeze_backbone": True, "num_workers": 1},
    {"method": "agcn", "amp": "fp16"},  # scaled gradients; this device computes in float32
]


@pytest.fixture(scope="module")
def device():
    """The module of the device; forked processes call `register` and use it."""
    path = Path(__file__).with_name("fake_device.py")
    spec = importlib.util.spec_from_file_location("fake_device", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def on_device(device, fork):
    """A function that calls another, with the name of the device, in a process that has it."""

    def call(function, *args):
        def run():
            device.register()
            with device.FakeDevice():
                function(device.NAME, *args)
            return 0

        printed, code = fork(run).wait()
        assert code == 0, printed

    return call


def make_run(out, device, case, **options):
    settings = make_settings("scenes", SMOKE, device=device, cache=str(out / "cache"), **case)
    return Run(settings, out / device, log=lambda text: None, **options)


def stop_after(n_saves, run):
    """Run until a number of states were saved."""
    save, saves = checkpoint.save_state, itertools.count(1)

    def save_and_stop(path, state):
        save(path, state)
        if next(saves) == n_saves:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save_state", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            run.run()


def compare_runs(device, out, case, stops):
    whole = make_run(out, device, case).run()
    if "amp" not in case:  # the CPU computes it in half precision, this device does not
        run = make_run(out, "cpu", case)
        assert run.run().nested == whole.nested
        image = torch.zeros(3, 32, 32)
        on_cpu, there = (load_model(run.folder, device=name).predict(image)[0] for name in ("cpu", device))
        assert on_cpu.probabilities == there.probabilities
    for n_saves in stops:
        case = {**case, "checkpoint_minutes": 0.0}
        stop_after(n_saves, make_run(out / f"{n_saves}", device, case))
        resumed = make_run(out / f"{n_saves}", device, case, resume=True).run()
        assert resumed.nested == whole.nested, n_saves


@pytest.mark.parametrize("case", SHORT, ids=lambda case: "-".join(map(str, case.values())))
def test_a_run_scores_as_on_the_cpu_and_resumes_before_its_evaluation(tmp_path, on_device, case):
    on_device(compare_runs, tmp_path, case, [AFTER_TRAINING])


@pytest.mark.slow
@pytest.mark.parametrize("case", LONG, ids=lambda case: "-".join(map(str, case.values())))
def test_runs_of_every_method_score_as_on_the_cpu_and_resume_anywhere(tmp_path, on_device, case):
    on_device(compare_runs, tmp_path, case, [2, AFTER_TRAINING, 5, 7])


@pytest.mark.parametrize("kind", [FeatureStatistics, CompactStatistics])
@pytest.mark.parametrize("n_images", [2, 60])  # of an experience: few are kept as a factor
def test_sums_of_a_state_follow_the_rows_to_their_device(on_device, kind, n_images):
    on_device(compare_sums, kind, n_images)


def compare_sums(device, kind, n_images):
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(3, n_images, 20, generator=generator)
    targets = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).repeat(n_images // 2, 1)

    def feed(statistics, experiences, place):
        for t in experiences:
            statistics.begin(2)
            statistics.update(features[t].to(place), targets.to(place))
            statistics.flush()

    expected, first = kind(), kind()
    feed(expected, range(3), "cpu")
    feed(first, range(2), device)
    for state in (first.state_dict(), {name: value.cpu() for name, value in first.state_dict().items()}):
        resumed = kind()
        resumed.load_state_dict(state)
        feed(resumed, [2], device)
        assert resumed.total().device.type == device
        torch.testing.assert_close(resumed.total().cpu(), expected.total())
        for t in range(3):
            assert resumed.moments(t).device == resumed.feature_sum(t).device == resumed.total().device
            torch.testing.assert_close(resumed.moments(t).cpu(), expected.moments(t))


def test_a_restored_strategy_has_its_model_on_the_device(on_device, make_strategy, benchmark):
    def compare(device):
        trained, restored = (make_strategy(device=device, evaluator=None) for _ in range(2))
        trained.train(benchmark.train_stream[0], eval_streams=[])
        state = checkpoint.capture(trained)
        checkpoint.restore(restored, state, benchmark.train_stream)
        assert all(weight.device.type == device for weight in restored.model.parameters())
        image = benchmark.test_stream[0].dataset[0][0][None].to(device)
        trained.model.eval(), restored.model.eval()
        assert torch.equal(trained.model(image).cpu(), restored.model(image).cpu())

    on_device(compare)


def test_a_model_on_the_device_is_exported_and_stays_there(tmp_path, on_device):
    def export(device):
        options = {"class_names": ["cat", "dog"], "transform": TRANSFORM}
        save_model(MultiLabelClassifier(create_backbone("small"), 2), tmp_path / "model", **options)
        model = load_model(tmp_path / "model", device=device)
        with _disable_current_modes():  # which torch.jit.trace does not know
            assert export_model(model, tmp_path / "model.pt", "torchscript").difference < 1e-5
        assert {weight.device.type for weight in model.parameters()} == {device}

    on_device(export)


def test_the_device_rejects_what_a_gpu_rejects(on_device):
    def check(device):
        there, here = torch.ones(3, device=device), torch.ones(3)
        for mix in (lambda: there + here, lambda: here.add_(there), lambda: here[there.long()]):
            with pytest.raises(RuntimeError, match="same device"):
                mix()
        with pytest.raises(RuntimeError, match="numpy"):
            there.numpy()
        assert (there[torch.tensor([0])] + torch.tensor(1.0)).tolist() == [2.0]
        there.copy_(2 * here)
        assert here.copy_(there).tolist() == [2.0, 2.0, 2.0]

    on_device(check)
