"""Models of finished runs: the same probabilities in another process, and files that are not models."""

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from safetensors.torch import load, save
from sklearn.metrics import f1_score

from avalanche_agcn.__main__ import main
from avalanche_agcn.agcn.strategy import PRESETS
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings
from avalanche_agcn.models import load_model

TINY = {**SMOKE, "n_train": 40, "n_test": 16, "limit": None, "image_size": 32}
WHOLE = ("agcn", "streaming_ridge", "l3a", "er")


def make_run(out, method, **settings):
    options = {"method": method, "keep_models": True, "cache": str(out / "cache"), **settings}
    run = Run(make_settings("scenes", TINY, **options), out, log=lambda text: None)
    run.run()
    return run


def images_of(run):
    """Images of the test stream, before any transform."""
    source, _, positions = run.images.plan.evaluation["test"]
    return [source[int(k)][0] for own in positions for k in own]


@torch.no_grad()
def probabilities(run):
    """Probabilities that the run computes for its test stream, [images, classes]."""
    data = [row[0] for experience in run.benchmark.test_stream for row in experience.dataset]
    return run.strategy.model.eval()(torch.stack(data)).double().sigmoid()


CASES = [
    *({"method": method} for method in METHODS),
    *({"method": method, "freeze_backbone": False} for method in WHOLE),
    *({"method": "agcn", "preset": preset} for preset in PRESETS if preset != "paper"),
]


@pytest.mark.parametrize("settings", CASES, ids=lambda settings: "-".join(map(str, settings.values())))
def test_a_saved_model_has_the_probabilities_of_its_run(tmp_path, settings):
    run = make_run(tmp_path, **{"freeze_backbone": True, "pretrained": True, **settings})
    model = load_model(run.folder)
    expected = probabilities(run)
    found = [list(prediction.probabilities.values()) for prediction in model.predict(images_of(run))]
    torch.testing.assert_close(torch.tensor(found).double(), expected, atol=1e-5, rtol=0)
    assert expected.std() > 1e-4  # probabilities that tell images or classes apart
    assert model.class_names == run.benchmark.class_names
    if run.n_experiences > 1:
        assert len(load_model(run.folder, after=1).class_names) == run.benchmark.classes_per_experience[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, and a test image of it in a file."""
    out = tmp_path_factory.mktemp("run")
    run = make_run(out, "agcn")
    images_of(run)[0].save(out / "scene.png")
    return run, out / "scene.png"


@pytest.fixture
def copy(finished, tmp_path):
    """The files of its model, to be changed."""
    for name in ("model.json", "model.safetensors"):
        (tmp_path / name).write_bytes((finished[0].folder / name).read_bytes())
    return tmp_path


def test_predict_in_a_new_process_prints_the_probabilities_of_the_run(finished, tmp_path):
    run, photo = finished
    command = [sys.executable, "-m", "avalanche_agcn", "predict", str(run.folder), str(photo), "--json"]
    options = {"env": {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, "cwd": tmp_path}
    done = subprocess.run(command, capture_output=True, text=True, check=True, **options)
    (found,) = json.loads(done.stdout)
    assert list(found["probabilities"]) == run.benchmark.class_names
    printed = torch.tensor(list(found["probabilities"].values()), dtype=torch.float64)
    torch.testing.assert_close(printed, probabilities(run)[0], atol=1e-5, rtol=0)
    assert set(found["labels"]) == {name for name, p in found["probabilities"].items() if p >= 0.5}


def test_a_table_has_what_is_found_the_most_probable_first(finished, capsys):
    run, photo = finished
    assert main(["predict", str(run.folder), str(photo), str(photo), "--after", "1"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    (expected,) = load_model(run.folder, after=1).predict(photo)
    texts = [f"{name} {expected.probabilities[name]:.2f}" for name in expected.names]
    assert first.startswith(str(photo))
    assert ", ".join(texts) in first
    assert main(["predict", str(run.folder), str(photo), "--csv"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header == "image,labels," + ",".join(run.benchmark.class_names)
    assert len(row.split(",")) == len(header.split(","))


def test_a_name_with_control_characters_does_not_reach_the_terminal(copy, finished, capsys):
    rewrite(copy, lambda c: {**c, "class_names": ["\x1b[31mred\n", "b", "c", "d"], "thresholds": [0.0] * 4})
    assert main(["predict", str(copy), str(finished[1])]) == 0
    assert r"'\x1b[31mred\n'" in capsys.readouterr().out


def test_thresholds_are_chosen_on_held_out_images(tmp_path):
    run = make_run(tmp_path, "finetuning", validation_size=0.3, freeze_backbone=True, pretrained=False)
    thresholds = load_model(run.folder).thresholds
    rows = [row for experience in run.benchmark.valid_stream for row in experience.dataset]
    targets = torch.stack([row[1] for row in rows])
    scores = run.strategy.model.eval()(torch.stack([row[0] for row in rows])).double().sigmoid()
    for c, chosen in enumerate(thresholds):
        f1 = {k / 10: f1_score(targets[:, c], scores[:, c] >= k / 10, zero_division=0) for k in range(1, 10)}
        assert f1[chosen] == pytest.approx(max(f1.values()))
    assert set(load_model(make_run(tmp_path / "b", "finetuning").folder).thresholds) == {0.5}


def rewrite(folder, change=None, tensors=None):
    """Change the description or the tensors, with the digest that fits them."""
    content, file = json.loads((folder / "model.json").read_text()), folder / "model.safetensors"
    if tensors is not None:
        file.write_bytes(save(tensors(load(file.read_bytes()))))
    content["tensors"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (folder / "model.json").write_text(json.dumps(content if change is None else change(content)))


NORMALIZE = {"name": "v2.Normalize", "mean": [0.5] * 3, "std": [0.5] * 3}
RESIZE = {"name": "v2.Resize", "interpolation": "bilinear", "max_size": None, "antialias": True}
TO_IMAGE, TO_FLOAT = {"name": "v2.ToImage"}, {"name": "v2.ToDtype", "dtype": "float32", "scale": True}
BAD = {
    "format": {"format": 7},
    "no names": {"class_names": None},
    "no backbone": {"backbone": None},
    "names": {"class_names": [1, 2, 3, 4]},
    "a name twice": {"class_names": ["a"] * 4},
    "thresholds": {"thresholds": ["0.5"] * 4},
    "fewer names": {"class_names": ["a"], "thresholds": [0.5]},
    "fewer thresholds": {"thresholds": [0.5]},
    "an unknown network": {"backbone": {"name": "no_such_network"}},
    "a path": {"backbone": {"name": "../../evil"}},
    "another network": {"backbone": {"name": "resnet18"}},
    "other weights": {"backbone": {"digest": "0" * 64}},
    "weights": {"backbone": {"weights": "evil.pt"}},
    "a switch": {"backbone": {"channels_last": "__import__('os')"}},
    "a pooling": {"backbone": {"pool": "none"}},
    "a transform": {"transform": [{"name": "v2.Lambda", "lambd": "print"}]},
    "a huge image": {"transform": [{**RESIZE, "size": 10**9}]},
    "no transform list": {"transform": 3},
    "a transform that takes no photo": {"transform": [NORMALIZE]},
    "a transform without numbers": {"transform": [TO_IMAGE]},
    "a normalisation of two channels": {"transform": [TO_IMAGE, TO_FLOAT, {**NORMALIZE, "mean": [0.5] * 2}]},
}


def changed(content, changes):
    """Content with other values, also within its objects; None removes a value."""
    new = {key: {**content[key], **own} if isinstance(own, dict) else own for key, own in changes.items()}
    return {key: value for key, value in {**content, **new}.items() if value is not None}


@pytest.mark.parametrize("kind", BAD)
def test_a_description_that_does_not_fit_gives_one_sentence(copy, kind):
    rewrite(copy, lambda content: changed(content, BAD[kind]))
    with pytest.raises(ValueError, match=r"model.json and model.safetensors are not a model") as raised:
        load_model(copy)
    assert "\n" not in str(raised.value)
    assert re.search(r"[^.]\.$", str(raised.value))


def refined(*shapes):
    names = ("refinement.origin", "refinement.unit", "refinement.gain")
    return {name: torch.ones(shape) for name, shape in zip(names, shapes)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weight: {"weight": None}, "'weight' is missing"),
        (lambda weight: {"weight": weight[:, :5].contiguous()}, r"'weight' has shape \(4, 5\)"),
        (lambda weight: {"weight": weight.long()}, "'weight' has values that are not finite floats"),
        (lambda weight: {"weight": weight * float("nan")}, "'weight' has values that are not finite floats"),
        (lambda weight: {"backbone.more": torch.zeros(3)}, "more"),
        (lambda weight: {"more": torch.zeros(3)}, "'more' has shape"),
        (lambda weight: {"random": torch.zeros(256, 4)}, r"'random' has shape \(256, 4\)"),
        (lambda weight: {"random": torch.zeros(10**9, 0)}, "has shape"),  # it must not be allocated
        (lambda weight: {"bias": torch.zeros(4, dtype=torch.int64)}, "'bias' has values"),
        (lambda weight: refined(4), "missing 2 required"),
        (lambda weight: refined(4, 4, (3, 4)), r"'refinement.gain' has shape \(3, 4\)"),
        (lambda weight: refined(3, 4, (4, 4)), r"'refinement.origin' has shape \(3,\)"),
    ],
)
def test_tensors_that_do_not_fit_give_one_sentence(copy, change, message):
    rewrite(copy, tensors=lambda tensors: changed(tensors, change(tensors["weight"])))
    with pytest.raises(ValueError, match=rf"are not a model that can be used: .*{message}.*\.$"):
        load_model(copy)


class Malicious:
    def __reduce__(self):
        return os.mkdir, (str(Path(__file__).parent / "executed"),)


def test_truncated_foreign_and_malicious_files_give_one_sentence_and_execute_nothing(copy, capsys):
    whole = (copy / "model.safetensors").read_bytes()
    foreign = [whole[: len(whole) // 2], b"", b"\xff" * 100, pickle.dumps(Malicious())]
    for content in foreign:
        (copy / "model.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match=r"model.safetensors is damaged, or of another run"):
            load_model(copy)
        rewrite(copy)  # with a digest that fits
        with pytest.raises(ValueError, match="are not a model that can be used"):
            load_model(copy)
    for content in (b"", b"\x80\x04", b"[" * 100_000, b"[]", pickle.dumps(Malicious()), b'{"format": 1}'):
        (copy / "model.json").write_bytes(content)
        assert main(["predict", str(copy), "photo.jpg"]) == 1
        assert re.search("are not a model that can be used", capsys.readouterr().err)
    assert not (Path(__file__).parent / "executed").exists()


def test_what_is_missing_is_named(finished, tmp_path, capsys):
    run, _ = finished
    with pytest.raises(FileNotFoundError, match=r"after9.json; there are model-after1.json, model-after2"):
        load_model(run.folder, after=9)
    with pytest.raises(FileNotFoundError, match=r"give the folder of one run: .*agcn-seed0"):
        load_model(run.folder.parent)
    with pytest.raises(FileNotFoundError, match="has a run ended there"):
        load_model(tmp_path)
    for name, message in {"gone.jpg": "There is no image", ".": "is a folder; give the files in it"}.items():
        assert main(["predict", str(run.folder), str(tmp_path / name)]) == 1
        assert message in capsys.readouterr().err


def test_paths_images_and_tensors_give_the_same_and_an_array_is_rejected(finished, tmp_path):
    run, photo = finished
    model, image = load_model(run.folder), Image.open(photo)
    inputs = model.transform(image)
    predictions = [model.predict(one)[0] for one in (photo, str(photo), image, inputs, inputs[None])]
    assert all(own == predictions[0] for own in predictions[1:])
    (other,) = model.predict([Image.new("L", (40, 50))])  # another size and mode
    assert model.predict([photo, Image.new("L", (40, 50)), photo]) == [predictions[0], other, predictions[0]]
    gradient = np.linspace(0, 65535, 40 * 30).reshape(30, 40)
    sideways = Image.fromarray((gradient / 256).astype(np.uint8)).convert("RGB")
    exif = sideways.getexif()
    exif[ExifTags.Base.Orientation] = 6
    sideways.save(tmp_path / "sideways.png", exif=exif)
    Image.fromarray(gradient.astype(np.uint16)).save(tmp_path / "16 bit.png")
    for path in tmp_path.iterdir():
        assert model.predict(Image.open(path)) == model.predict(path)
    with pytest.raises(TypeError, match=r"Photos must be paths, PIL images or tensors .*, not ndarray\."):
        model.predict([np.zeros((3, 8, 8))])
    with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
        model.predict([], batch_size=0)
