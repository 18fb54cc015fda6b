"""Saved models: the same probabilities in another process, and files that are not models."""

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
from torch import nn
from torchvision.transforms import v2

from avalanche_agcn.__main__ import UNREADABLE, main
from avalanche_agcn.agcn.strategy import PRESETS
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings
from avalanche_agcn.models import (
    AGCNModel,
    Backbone,
    MultiLabelClassifier,
    Precomputed,
    RandomFeatures,
    create_backbone,
    load_model,
    save_model,
)
from avalanche_agcn.models import saved as saved_models
from avalanche_agcn.models.linear import Familiarity, LogitRefinement
from avalanche_agcn.models.saved import _calibrated_heads

TINY = {**SMOKE, "n_train": 40, "n_test": 16, "limit": None, "image_size": 32}
WHOLE = ("agcn", "streaming_ridge", "l3a", "er")


def make_run(out, method, **settings):
    options = {"method": method, "keep_models": True, "cache": str(out / "cache"), **settings}
    run = Run(make_settings("scenes", TINY, **options), out, log=lambda text: None)
    run.run()
    return run


def images_of(run):
    """Images of the test stream, before any transform."""
    source, _, positions = run.image_benchmark.plan.evaluation["test"]
    return [source[int(k)][0] for own in positions for k in own]


@torch.no_grad()
def probabilities(run):
    """Calibrated probabilities that the run computes for its test stream, [images, classes]."""
    data = [row[0] for experience in run.benchmark.test_stream for row in experience.dataset]
    model = run.strategy.model.eval()
    features = model.features(torch.stack(data))
    with torch.autocast("cpu", enabled=False):
        logits = model.logits(features).double()
        calibration = run.recorder.calibration
        return run.familiarity(logits * calibration.scale + calibration.offset, features).sigmoid()


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
    thresholds = dict(zip(run.benchmark.class_names, load_model(run.folder).thresholds, strict=True))
    above = {name for name, p in found["probabilities"].items() if p >= thresholds[name]}
    assert set(found["labels"]) == above


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


def test_predictions_of_an_unfinished_run_say_so_on_standard_error(copy, finished, capsys):
    run, photo = finished
    assert main(["predict", str(run.folder), str(photo)]) == 0
    assert capsys.readouterr().err == ""
    for suffix in (".json", ".safetensors"):  # a run that has ended after its first experience
        (copy / f"model{suffix}").write_bytes((run.folder / f"model-after1{suffix}").read_bytes())
    assert main(["predict", str(copy), str(photo), "--json"]) == 0
    printed = capsys.readouterr()
    n_classes = run.benchmark.classes_per_experience[0]
    expected = f"the model knows {n_classes} classes, after 1 of {run.n_experiences} experiences."
    assert printed.err == f"This run is not finished: {expected}\n"
    json.loads(printed.out)


def test_a_model_trained_in_half_precision_predicts_in_it(tmp_path):
    run = make_run(tmp_path, "finetuning", freeze_backbone=False, amp="bf16")
    model = load_model(run.folder)
    data = [row[0] for experience in run.benchmark.test_stream for row in experience.dataset]
    with run.strategy.autocast():
        expected = probabilities(run)
    assert not torch.equal(expected, probabilities(run))
    rows = model.predict(torch.stack(data), batch_size=len(data))
    found = torch.tensor([list(row.probabilities.values()) for row in rows], dtype=torch.float64)
    # Saved classifiers are float32, scaled by the calibration: full precision differs by more than that.
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert (expected - probabilities(run)).abs().max() > 1e-5
    with pytest.raises(ValueError, match=r"amp=bf16 has no effect with freeze_backbone.*leave out --amp"):
        make_settings("scenes", TINY, method="er", freeze_backbone=True, amp="bf16")


def test_a_name_with_control_characters_is_rejected_and_does_not_reach_the_terminal(copy, finished, capsys):
    rewrite(copy, lambda c: {**c, "class_names": ["\x1b[31mred\n", "b", "c", "d"], "thresholds": [0.0] * 4})
    assert main(["predict", str(copy), str(finished[1])]) == 1
    printed = capsys.readouterr().err
    assert r"class_names are not text of 1 to 200 printable characters: '\x1b[31mred\n'" in printed
    rewrite(copy, lambda c: {**c, "class_names": ["a", " ", "c", "d"]})
    with pytest.raises(ValueError, match="class_names are not text of 1 to 200 printable characters: ' '"):
        load_model(copy)


def test_a_description_without_a_transform_says_so(copy):
    rewrite(copy, lambda content: {name: value for name, value in content.items() if name != "transform"})
    with pytest.raises(ValueError, match=r"model.json has no 'transform', which is required"):
        load_model(copy)


def test_predict_takes_one_threshold_for_all_classes_and_a_number_of_labels(finished, capsys):
    run, photo = finished
    model = load_model(run.folder)
    (usual,) = model.predict(photo)
    ranked = sorted(usual.probabilities, key=usual.probabilities.__getitem__, reverse=True)
    (top,) = model.predict(photo, top=3)
    assert top.names == ranked[:3]
    limit = usual.probabilities[ranked[1]]
    (above,) = model.predict(photo, threshold=limit)
    assert above.names == ranked[:2]
    (both,) = model.predict(photo, threshold=limit, top=1)
    assert both.names == ranked[:1]
    assert main(["predict", str(run.folder), str(photo), "--threshold", "0", "--top", "2", "--json"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    assert printed["labels"] == ranked[:2]
    with pytest.raises(ValueError, match=r"threshold must be .* at most 1, not 3"):
        model.predict(photo, threshold=3)


def test_calibration_is_exact_in_the_weights_of_a_refined_model():
    torch.manual_seed(0)
    model = MultiLabelClassifier(create_backbone("small"), 3).eval()
    refinement = LogitRefinement(torch.randn(3), torch.rand(3) + 0.5, torch.rand(3, 3))
    model.set_classifiers(torch.randn(3, model.classifier.in_features), torch.randn(3), refinement)
    scale, offset = torch.rand(3) + 0.5, torch.randn(3)
    features = torch.randn(20, model.classifier.in_features)
    expected = model.logits(features) * scale + offset
    heads = _calibrated_heads(model, scale, offset)
    parts = {name.partition(".")[2]: value for name, value in heads.items() if "refinement" in name}
    model.set_classifiers(heads["weight"], heads["bias"], LogitRefinement(**parts))
    torch.testing.assert_close(model.logits(features), expected, atol=1e-4, rtol=1e-4)


def test_images_unlike_the_training_images_have_low_logits():
    features = torch.randn(500, 8, dtype=torch.float64) * 0.1 + 1
    mean = features.mean(0)
    familiarity = Familiarity(mean, (features @ mean).square().mean())
    logits = torch.randn(500, 3, dtype=torch.float64)
    z = features @ familiarity.weight + familiarity.bias
    assert z.mean().item() == pytest.approx(0, abs=1e-9)
    assert z.std(correction=0).item() == pytest.approx(1)
    usual = z > -Familiarity.LIMIT
    assert torch.equal(familiarity(logits, features)[usual], logits[usual])
    assert (familiarity(logits, torch.zeros_like(features)) < -20).all()


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
    "threshold that is no probability": {"thresholds": [0.5, 0.5, -1.0, 2.0]},
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


def test_missing_model_or_photo_is_named(finished, tmp_path, capsys):
    run, _ = finished
    with pytest.raises(FileNotFoundError, match=r"after9.json; there are model-after1.json, model-after2"):
        load_model(run.folder, after=9)
    with pytest.raises(FileNotFoundError, match=r"give the folder of one run: .*agcn-seed0"):
        load_model(run.folder.parent)
    with pytest.raises(FileNotFoundError, match="has a run ended there"):
        load_model(tmp_path)
    misspelled = run.folder.with_name(run.folder.name.replace("-", "_"))
    with pytest.raises(FileNotFoundError, match=rf"no folder {misspelled} \(did you mean {run.folder}\?\)"):
        load_model(misspelled)
    for name, message, code in [
        ("gone.jpg", "There is no image", UNREADABLE),
        (".", "There is no photo in", 1),
    ]:
        assert main(["predict", str(run.folder), str(tmp_path / name)]) == code
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


# Models of one's own training loop

NAMES = ["cat", "dog", "car"]
TRANSFORM = v2.Compose(
    [
        v2.ToImage(),
        v2.Resize((32, 32), antialias=True),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.25] * 3),
        v2.ToPureTensor(),
    ]
)


def linear_model(**settings):
    return MultiLabelClassifier(create_backbone("small", pretrained=True, **settings), 3)


def graph_model():
    model = AGCNModel(create_backbone("small", pretrained=True), torch.randn(5, 4), hidden_features=6)
    model.set_graph(torch.eye(3) + 0.2)  # two of five classes are not seen yet
    return model


def random_layer_model():
    backbone = RandomFeatures(create_backbone("small", pretrained=True), 40)
    return MultiLabelClassifier(backbone, 3)


def refined_model():
    model = linear_model(frozen="all")
    refinement = LogitRefinement(torch.zeros(3), torch.ones(3), torch.rand(3, 3).fill_diagonal_(0))
    model.set_classifiers(model.classifier.weight, model.classifier.bias, refinement)
    return model


def train_in_a_loop(model):
    """A few steps on noise, which change weights and running statistics."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    model.train()
    for _ in range(3):
        loss = nn.functional.binary_cross_entropy_with_logits(
            model(torch.randn(8, 3, 32, 32)), torch.rand(8, 3).round()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.fixture
def photos(tmp_path):
    """Paths of ten images of different sizes."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = []
    for k in range(10):
        pixels = rng.integers(0, 255, (30 + k, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{k}.png")
        paths.append(folder / f"{k}.png")
    return paths


@torch.no_grad()
def expected_probabilities(model, photos):
    inputs = torch.stack([TRANSFORM(Image.open(photo)) for photo in photos])
    return model.eval()(inputs).double().sigmoid()


MODELS = {
    "linear": linear_model,
    "folded": lambda: linear_model(freeze_batchnorm=True, fold_batchnorm=True, channels_last=True),
    "average": lambda: linear_model(pool="avg"),
    "graph": graph_model,
    "random layer": random_layer_model,
    "refined": refined_model,
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_of_ones_own_loop_predicts_with_its_probabilities_and_thresholds(tmp_path, photos, kind):
    torch.manual_seed(0)
    model = MODELS[kind]()
    train_in_a_loop(model)
    expected = expected_probabilities(model, photos)
    thresholds = expected.median(0).values.tolist()  # about half of the photos reach them
    further = ["tree", "sea"] if kind == "graph" else []
    save_model(
        model,
        tmp_path / "new" / "folder",
        class_names=NAMES + further,
        transform=TRANSFORM,
        thresholds=[limit - 1e-6 for limit in thresholds] + [0.5] * len(further),
    )
    saved = load_model(tmp_path / "new" / "folder")
    assert saved.class_names == NAMES
    found = saved.predict(photos)
    probabilities = torch.tensor([list(one.probabilities.values()) for one in found], dtype=torch.float64)
    torch.testing.assert_close(probabilities, expected, atol=1e-6, rtol=0)
    for prediction, row in zip(found, expected):
        ranked = sorted(range(3), key=lambda c: -row[c])
        assert prediction.names == [NAMES[c] for c in ranked if row[c] >= thresholds[c] - 1e-6]
    assert 10 < sum(len(prediction.names) for prediction in found) < 20
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == ["model.json", "model.safetensors"]


def test_tensors_of_any_precision_are_predicted_and_those_of_no_transform_rejected(tmp_path):
    torch.manual_seed(0)
    save_model(linear_model(), tmp_path, class_names=NAMES)
    saved = load_model(tmp_path)
    image = torch.rand(3, 32, 32)
    expected = torch.tensor(list(saved.predict(image)[0].probabilities.values()))
    for dtype in (torch.float64, torch.float16):
        found = torch.tensor(list(saved.predict(image.to(dtype))[0].probabilities.values()))
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
    with pytest.raises(ValueError, match=r"floating-point values, not torch.uint8: give photos as paths"):
        saved.predict((image * 255).to(torch.uint8))
    with pytest.raises(ValueError, match="Image 1 of the batch has values that are not finite"):
        saved.predict(torch.stack([image, image * torch.nan]))


@pytest.mark.parametrize(("given", "expected"), [({}, [0.5] * 3), ({"thresholds": 0.2}, [0.2] * 3)])
def test_one_threshold_is_for_all_classes_and_a_model_is_replaced(tmp_path, photos, capsys, given, expected):
    for names in (NAMES, ["a", "b", "c"]):
        model = linear_model()
        save_model(model, tmp_path, class_names=names, transform=TRANSFORM, **given)
    saved = load_model(tmp_path)
    assert (saved.thresholds, saved.class_names) == (expected, ["a", "b", "c"])
    assert main(["predict", str(tmp_path), str(photos[0]), "--json"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    row = expected_probabilities(model, photos[:1])[0]
    assert set(printed["labels"]) == {name for name, p in zip("abc", row) if p >= expected[0]}


def test_a_model_trained_on_features_is_saved_with_the_network_that_computed_them(tmp_path, photos):
    backbone = create_backbone("small", pretrained=True, frozen="all")
    model = MultiLabelClassifier(Precomputed(backbone.num_features), 3)
    with pytest.raises(ValueError, match="trained on features; pass backbone="):
        save_model(model, tmp_path, class_names=NAMES)
    save_model(model, tmp_path, class_names=NAMES, transform=TRANSFORM, backbone=backbone)
    whole = MultiLabelClassifier(backbone, 3)
    whole.set_classifiers(*model.classifiers())
    (found,) = load_model(tmp_path).predict(photos[0])
    expected = expected_probabilities(whole, photos[:1])[0]
    assert list(found.probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_transform_that_cannot_be_saved_gives_a_warning_and_a_model_for_tensors(tmp_path, photos):
    model = linear_model()
    flip = v2.Compose([TRANSFORM, v2.RandomHorizontalFlip()])
    with pytest.warns(UserWarning, match="has steps that cannot be saved, .* use these steps .* Resize"):
        save_model(model, tmp_path, class_names=NAMES, transform=flip)
    saved = load_model(tmp_path)
    with pytest.raises(ValueError, match="saved without its transform: pass photos as transformed tensors"):
        saved.predict(photos[0])
    (found,) = saved.predict(TRANSFORM(Image.open(photos[0])))
    expected = expected_probabilities(model, photos[:1])[0]
    assert list(found.probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (lambda: nn.Linear(3, 3), {}, r"not Linear; put a network into MultiLabelClassifier"),
        (linear_model, {"class_names": ["cat"]}, "has 1 names for 3 classes; name them all"),
        (linear_model, {"class_names": ["cat", "dog", "cat"]}, "'cat' more than once"),
        (linear_model, {"thresholds": [0.5]}, "1 thresholds for 3 class names; give one for each"),
        (linear_model, {"thresholds": [0.5, 0.5, 50]}, "threshold of 'car' must be .* at most 1, not 50"),
        (linear_model, {"thresholds": float("nan")}, "threshold of 'cat' must be a finite number"),
        (
            lambda: MultiLabelClassifier(Backbone(nn.Conv2d(3, 4, 3), num_features=4), 3),
            {},
            r"Backbone cannot be made again from a file: only networks of create_backbone\(name\)",
        ),
        (lambda: MultiLabelClassifier(create_backbone("small", width=8), 3), {}, "without settings"),
        (lambda: linear_model().half(), {}, r"not float32; call model\.float\(\)"),
        (
            lambda: AGCNModel(create_backbone("small"), torch.randn(3, 4), hidden_features=6),
            {},
            "has seen no class yet; train it",
        ),
    ],
)
def test_models_that_could_not_be_loaded_are_not_saved(tmp_path, model, given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        save_model(model(), tmp_path / "folder", **{"class_names": NAMES, **given})
    assert not (tmp_path / "folder").exists()


# The copy of the network that predicts


@pytest.mark.parametrize("kind", MODELS)
def test_predictions_come_from_a_folded_copy_and_differ_from_the_network_by_rounding(tmp_path, photos, kind):
    torch.manual_seed(0)
    save_model(MODELS[kind](), tmp_path, class_names=NAMES, transform=TRANSFORM)
    saved = load_model(tmp_path)
    calls = []
    for layer in saved.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.register_forward_hook(lambda *parts: calls.append(parts[0]))
    saved.predict(photos)  # makes the copy
    calls.clear()
    found = torch.tensor([list(one.probabilities.values()) for one in saved.predict(photos)])
    assert not calls
    inputs = torch.stack([TRANSFORM(Image.open(photo).convert("RGB")) for photo in photos])
    with torch.no_grad():
        expected = saved(inputs).sigmoid()
    assert bool(calls) == (kind != "folded")  # whose own network has no such layer
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_predictions_follow_weights_that_change(tmp_path, photos):
    save_model(linear_model(), tmp_path, class_names=NAMES, transform=TRANSFORM)
    saved = load_model(tmp_path)
    (before,) = saved.predict(photos[0])
    copied = saved._folded[0]
    assert saved.predict(photos[0]) == [before]
    assert saved._folded[0] is copied
    first = next(saved.backbone.parameters())
    with torch.no_grad():
        first.mul_(-1)
    (after,) = saved.predict(photos[0])
    assert after != before
    assert list(after.probabilities.values()) == pytest.approx(
        expected_probabilities(saved, photos[:1])[0].tolist(), abs=1e-6
    )
    with torch.no_grad():
        first.mul_(-1)
    assert saved.predict(photos[0]) == [before]
    first.data.mul_(-1)  # which the tensor does not count as a change
    assert saved.predict(photos[0]) == [after]
    first.data.mul_(-1)
    saved.backbone.pool = "avg" if saved.backbone.pool == "max" else "max"
    (pooled,) = saved.predict(photos[0])
    assert list(pooled.probabilities.values()) == pytest.approx(
        expected_probabilities(saved, photos[:1])[0].tolist(), abs=1e-6
    )
    assert pooled != before
    assert not any(name.startswith("_folded") for name in saved.state_dict())


def test_photos_travel_as_bytes_and_are_normalised_as_batches(tmp_path, photos, monkeypatch):
    save_model(linear_model(), tmp_path, class_names=NAMES, transform=TRANSFORM)
    saved = load_model(tmp_path)
    given = []
    forward = saved_models.frozen_forward
    monkeypatch.setattr(
        saved_models, "frozen_forward", lambda *parts: (given.append(parts[1].dtype), forward(*parts))[1]
    )
    expected = saved.predict([TRANSFORM(Image.open(photo).convert("RGB")) for photo in photos])
    assert set(given) == {torch.float32}
    given.clear()
    assert saved.predict(photos) == expected
    assert set(given) == {torch.uint8}
