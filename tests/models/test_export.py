"""Exported models: the same probabilities in a process that cannot import this package."""

import json
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from avalanche_agcn.__main__ import main
from avalanche_agcn.models import (
    AGCNModel,
    MultiLabelClassifier,
    RandomFeatures,
    create_backbone,
    load_model,
    save_model,
)
from avalanche_agcn.models.export import export_model
from avalanche_agcn.models.linear import LogitRefinement

NAMES = ["cat", "dog", "“car”"]
THRESHOLDS = [0.4, 0.5, 0.6]
NORMALIZE = v2.Normalize([0.5, 0.4, 0.3], [0.25] * 3)
TRANSFORM = v2.Compose(
    [v2.ToImage(), v2.Resize((32, 40)), v2.ToDtype(torch.float32, scale=True), NORMALIZE, v2.ToPureTensor()]
)
OPEN = {
    "torchscript": """
extra = {"metadata.json": ""}
network = torch.jit.load(path, _extra_files=extra)
""",
    "pt2": """
extra = {"metadata.json": ""}
network = torch.export.load(path, extra_files=extra).module()
""",
    "onnx": """
import onnxruntime
session = onnxruntime.InferenceSession(path)
extra = session.get_modelmeta().custom_metadata_map
network = lambda images: torch.tensor(session.run(None, {"images": images.numpy()})[0])
""",
}
WITHOUT_PACKAGE = """
import json, sys
sys.modules["avalanche_agcn"] = None  # importing it fails
import torch
path, photo = sys.argv[1:]
{open}
about = json.loads(extra["metadata.json"])
from PIL import Image
from torchvision.transforms import v2
steps = {{step["name"]: step for step in about["transform"]}}
resize, normalize = steps["v2.Resize"], steps["v2.Normalize"]
image = v2.functional.to_image(Image.open(photo))
image = v2.functional.resize(image, resize["size"], antialias=resize["antialias"])
image = v2.functional.normalize(image / 255, normalize["mean"], normalize["std"])
with torch.no_grad():
    probabilities = network(torch.stack([image] * 3))[0].tolist()
print(json.dumps({{"about": about, "probabilities": probabilities}}))
"""


def graph_model():
    model = AGCNModel(create_backbone("small", pretrained=True), torch.randn(3, 4), hidden_features=6)
    model.set_graph(torch.eye(3) + 0.2)
    return model


def refined_model():
    """With everything that a saved model may have: a random layer and a refinement of logits."""
    backbone = RandomFeatures(create_backbone("small", pretrained=True, channels_last=True), 40)
    model = MultiLabelClassifier(backbone, 3)
    refinement = LogitRefinement(torch.zeros(3), torch.ones(3), torch.rand(3, 3).fill_diagonal_(0))
    model.set_classifiers(model.classifier.weight, model.classifier.bias, refinement)
    return model


def saved(folder, model):
    save_model(model, folder, class_names=NAMES, transform=TRANSFORM, thresholds=THRESHOLDS)
    return folder


@pytest.fixture
def photo(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.mark.parametrize(
    "format",
    [
        "torchscript",
        pytest.param("pt2", marks=pytest.mark.slow),
        pytest.param("onnx", marks=pytest.mark.slow),
    ],
)
def test_an_exported_file_has_everything_for_a_process_without_this_package(tmp_path, photo, capsys, format):
    if format == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package)
    torch.manual_seed(0)
    run = saved(tmp_path / "run", refined_model())
    file = tmp_path / "elsewhere" / "model.bin"
    assert main(["export", str(run), "--format", format, "--out", str(file), "--photos", str(photo)]) == 0
    assert "3 classes; on 10 images its probabilities differ by at most" in capsys.readouterr().out
    script = WITHOUT_PACKAGE.format(open=OPEN[format])
    command = [sys.executable, "-c", script, str(file), str(photo)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (expected,) = load_model(run).predict(photo)
    assert found["probabilities"] == pytest.approx(list(expected.probabilities.values()), abs=1e-5)
    assert found["about"]["class_names"] == NAMES
    assert found["about"]["thresholds"] == THRESHOLDS
    assert found["about"]["input"]["shape"] == ["batch", 3, 32, 40]
    assert [path.name for path in file.parent.iterdir()] == ["model.bin"]


def test_the_file_is_in_the_folder_of_the_run_by_default(tmp_path, photo):
    run = saved(tmp_path / "run", graph_model())
    assert main(["export", str(run), "--format", "torchscript"]) == 0
    network = torch.jit.load(run / "model.pt")
    model = load_model(run)
    (expected,) = model.predict(photo)
    found = network(model.transform(Image.open(photo))[None])[0]
    assert found.tolist() == pytest.approx(list(expected.probabilities.values()), abs=1e-5)


def test_a_file_with_other_probabilities_is_not_kept(tmp_path):
    class FixedSum(torch.nn.Module):
        """A network whose trace is wrong for any other image, as it depends on the values of the image."""

        num_features = 4

        def forward(self, x):
            shift = 0.0
            if x.sum() < 1e9:  # always, but torch.export cannot know
                shift = math.sin(x.sum())
            return x.flatten(1)[:, :4] + shift

    model = load_model(saved(tmp_path / "run", graph_model()))
    model.backbone = FixedSum()
    model.classifier = torch.nn.Linear(4, 3)
    file = tmp_path / "model.pt"
    file.write_text("an older file")
    with pytest.raises(ValueError, match=r"torchscript file gives probabilities that differ by .* not kept"):
        export_model(model, file, "torchscript")
    with pytest.raises(ValueError, match=r"This network cannot be exported in this format \(.*\): choose"):
        export_model(model, file, "pt2")
    assert file.read_text() == "an older file"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "run"]


def test_models_that_cannot_be_exported_are_named(tmp_path, capsys):
    run = tmp_path / "run"
    model = MultiLabelClassifier(create_backbone("small"), 3)
    save_model(model, run, class_names=NAMES)
    assert main(["export", str(run), "--format", "torchscript"]) == 1
    assert "The model was saved without its transform" in capsys.readouterr().err
    any_size = v2.Compose([v2.ToImage(), v2.Resize(32), v2.ToDtype(torch.float32, scale=True)])
    save_model(model, run, class_names=NAMES, transform=any_size)
    assert main(["export", str(run), "--format", "torchscript"]) == 1
    assert "Photos of different shapes give network inputs of different sizes" in capsys.readouterr().err
    assert main(["export", str(run)]) == 2
    assert (
        "say what to write: --format onnx, torchscript or pt2, or --with-backbone" in capsys.readouterr().err
    )
    with pytest.raises(ValueError, match="format must be one of"):
        export_model(load_model(run), tmp_path / "a", "keras")


def test_missing_packages_for_onnx_are_named(tmp_path, monkeypatch, capsys):
    run = saved(tmp_path / "run", graph_model())
    monkeypatch.setattr("avalanche_agcn.models.export.find_spec", lambda name: None)
    assert main(["export", str(run), "--format", "onnx"]) == 1
    assert (
        "ONNX needs onnx, onnxscript, onnxruntime, not installed here: pip install" in capsys.readouterr().err
    )


FORMATS = [
    "torchscript",
    pytest.param("pt2", marks=pytest.mark.slow),
    pytest.param("onnx", marks=pytest.mark.slow),
]
FULL_DISK = """
import resource, signal, sys
from avalanche_agcn.__main__ import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # files cannot grow, as on a full disk
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit for the size of files")
@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_cannot_be_written_ends_in_a_sentence_with_its_name(tmp_path, format):
    if format == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package)
    run = saved(tmp_path / "run", graph_model())
    file = tmp_path / "out" / "model.bin"
    command = [sys.executable, "-c", FULL_DISK, "export", str(run), "--format", format, "--out", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(rf"Stopped: \[Errno \d+\] .*: '{file}'\.\n", done.stderr)
    assert list(file.parent.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="links need a permission there")
def test_a_link_is_followed_and_what_is_no_file_is_not_replaced(tmp_path, capsys):
    run = saved(tmp_path / "run", graph_model())
    (tmp_path / "link.pt").symlink_to(tmp_path / "target.pt")
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "folder").mkdir()
    arguments = ["export", str(run), "--format", "torchscript", "--out"]
    assert main([*arguments, str(tmp_path / "link.pt")]) == 0
    assert (tmp_path / "link.pt").is_symlink()
    torch.jit.load(tmp_path / "target.pt")
    capsys.readouterr()
    for name, kind in {"pipe.pt": "not a regular file", "folder": "a folder"}.items():
        before = (tmp_path / name).stat()
        assert main([*arguments, str(tmp_path / name)]) == 1
        assert f"{tmp_path / name} is {kind} and cannot be replaced" in capsys.readouterr().err
        assert (tmp_path / name).stat() == before


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit for the size of files")
def test_weights_that_cannot_be_stored_leave_the_model_as_it_was(tmp_path):
    run = saved(tmp_path / "run", graph_model())
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    command = [sys.executable, "-c", FULL_DISK, "export", str(run), "--with-backbone"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"'{run / 'model.safetensors'}'." in done.stderr
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
