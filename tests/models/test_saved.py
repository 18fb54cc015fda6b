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

from avalanche_agcn.__main__ import main
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings
from avalanche_agcn.models import load_model
from avalanche_agcn.training.strategies.agcn import PRESETS

ROOT = Path(__file__).parents[2]
TINY = {**SMOKE, "n_train": 40, "n_test": 16, "limit": None, "image_size": 32}
WHOLE = ("agcn", "streaming_ridge", "l3a", "er")


def make_run(out, method, **settings):
    options = {"method": method, "keep_models": True, "cache": str(out / "cache"), **settings}
    run = Run(make_settings("scenes", TINY, **options), out, log=lambda text: None)
    run.run()
    return run


def images_of(run):
    """Images of the test stream, as they were drawn."""
    source, _, positions = run.images.plan.evaluation["test"]
    return [source[int(k)][0] for own in positions for k in own]


@torch.no_grad()
def probabilities(run):
    """What the run computes for its test stream, [images, classes]."""
    data = [row[0] for experience in run.benchmark.test_stream for row in experience.dataset]
    return run.strategy.model.eval()(torch.stack(data)).double().sigmoid()


def with_preset(name):
    """Method and settings of a name such as "agcn statistics"."""
    method, _, preset = name.partition(" ")
    return {"method": method, **({"preset": preset} if preset else {})}


def rows(predictions):
    return torch.tensor([list(own.probabilities.values()) for own in predictions], dtype=torch.float64)


@pytest.mark.parametrize(
    ("method", "frozen"),
    [(m, True) for m in METHODS] + [(m, False) for m in WHOLE] + [("agcn statistics", True)],
)
def test_a_saved_model_has_the_probabilities_of_its_run(tmp_path, method, frozen):
    run = make_run(tmp_path, freeze_backbone=frozen, pretrained=False, **with_preset(method))
    model = load_model(run.folder)
    torch.testing.assert_close(rows(model.predict(images_of(run))), probabilities(run), atol=1e-5, rtol=0)
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
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    (found,) = json.loads(done.stdout)
    assert list(found["probabilities"]) == run.benchmark.class_names
    printed = torch.tensor(list(found["probabilities"].values()), dtype=torch.float64)
    torch.testing.assert_close(printed, probabilities(run)[0], atol=1e-5, rtol=0)
    assert set(found["labels"]) == {name for name, p in found["probabilities"].items() if p >= 0.5}


PREDICT_ALL = """
import sys
from avalanche_agcn.__main__ import main
folders, photos = sys.argv[1].split(":"), sys.argv[2:]
for folder in folders:
    assert main(["predict", folder, *photos, "--json"]) == 0
    print("end of", folder)
"""


@pytest.mark.slow
def test_predict_in_a_new_process_has_the_probabilities_of_every_method(tmp_path):
    runs = [
        make_run(tmp_path / f"{name}-{frozen}", freeze_backbone=frozen, pretrained=True, **with_preset(name))
        for name in (*METHODS, *(f"agcn {preset}" for preset in PRESETS if preset != "paper"))
        for frozen in (True, False)
    ]
    photos = [tmp_path / f"{k}.png" for k in range(16)]
    for image, photo in zip(images_of(runs[0]), photos, strict=True):
        image.save(photo)
    arguments = [":".join(str(run.folder) for run in runs), *map(str, photos)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PREDICT_ALL, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=True,
    )
    *printed, rest = re.split(r"^end of .*\n", done.stdout, flags=re.MULTILINE)
    assert rest == ""
    for run, text in zip(runs, printed, strict=True):
        found = [list(own["probabilities"].values()) for own in json.loads(text)]
        expected = probabilities(run)
        label = f"{run.folder}: {{}}".format
        torch.testing.assert_close(
            torch.tensor(found, dtype=torch.float64), expected, atol=1e-5, rtol=0, msg=label
        )
        assert expected.std() > 1e-4, run.folder  # probabilities that tell images or classes apart


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


def test_paths_images_and_tensors_give_the_same(finished):
    run, photo = finished
    model = load_model(run.folder)
    image = Image.open(photo)
    inputs = model.transform(image)
    predictions = [model.predict(one)[0] for one in (photo, str(photo), image, inputs, inputs[None])]
    assert all(own == predictions[0] for own in predictions[1:])
    (other,) = model.predict([Image.new("L", (40, 50))])  # another size and mode
    assert model.predict([photo, Image.new("L", (40, 50)), photo]) == [predictions[0], other, predictions[0]]


def test_thresholds_are_chosen_on_held_out_images(tmp_path):
    run = make_run(tmp_path, "finetuning", validation_size=0.3, freeze_backbone=True, pretrained=False)
    thresholds = load_model(run.folder).thresholds
    stream = run.benchmark.valid_stream
    data = [row for experience in stream for row in experience.dataset]
    scores = run.strategy.model.eval()(torch.stack([row[0] for row in data])).double().sigmoid()
    targets = torch.stack([row[1] for row in data])
    for c, chosen in enumerate(thresholds):
        f1 = {}
        for k in range(1, 10):
            found = scores[:, c] >= k / 10
            right = float((found * targets[:, c]).sum())
            f1[k / 10] = 2 * right / max(1.0, float(found.sum() + targets[:, c].sum()))
        assert f1[chosen] == pytest.approx(max(f1.values()))
    assert set(load_model(make_run(tmp_path / "b", "finetuning").folder).thresholds) == {0.5}


def rewrite(folder, change=None, tensors=None):
    """Change the description or the tensors, with the digest that fits them."""
    content = json.loads((folder / "model.json").read_text())
    if tensors is not None:
        (folder / "model.safetensors").write_bytes(
            save(tensors(load((folder / "model.safetensors").read_bytes())))
        )
    content["tensors"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    (folder / "model.json").write_text(json.dumps(content if change is None else change(content)))


def without(name):
    return lambda content: {key: value for key, value in content.items() if key != name}


NORMALIZE = {"name": "v2.Normalize", "mean": [0.5] * 3, "std": [0.5] * 3}
TO_FLOAT = {"name": "v2.ToDtype", "dtype": "float32", "scale": True}
BAD = {
    "format": lambda c: {**c, "format": 7},
    "no names": without("class_names"),
    "no backbone": without("backbone"),
    "a list": lambda c: [c],
    "names": lambda c: {**c, "class_names": [1, 2, 3, 4]},
    "a name twice": lambda c: {**c, "class_names": ["a"] * 4},
    "thresholds": lambda c: {**c, "thresholds": ["0.5"] * 4},
    "fewer names": lambda c: {**c, "class_names": ["a"], "thresholds": [0.5]},
    "an unknown network": lambda c: {**c, "backbone": {**c["backbone"], "name": "no_such_network"}},
    "a path": lambda c: {**c, "backbone": {**c["backbone"], "name": "../../evil"}},
    "another network": lambda c: {**c, "backbone": {**c["backbone"], "name": "resnet18"}},
    "other weights": lambda c: {**c, "backbone": {**c["backbone"], "digest": "0" * 64}},
    "weights": lambda c: {**c, "backbone": {**c["backbone"], "weights": "evil.pt"}},
    "a switch": lambda c: {**c, "backbone": {**c["backbone"], "channels_last": "__import__('os')"}},
    "a pooling": lambda c: {**c, "backbone": {**c["backbone"], "pool": "none"}},
    "a transform": lambda c: {**c, "transform": [{"name": "v2.Lambda", "lambd": "print"}]},
    "a huge image": lambda c: {
        **c,
        "transform": [
            {
                "name": "v2.Resize",
                "size": 10**9,
                "interpolation": "bilinear",
                "max_size": None,
                "antialias": True,
            }
        ],
    },
    "no transform list": lambda c: {**c, "transform": 3},
    "a transform that takes no photo": lambda c: {**c, "transform": [NORMALIZE]},
    "a transform without numbers": lambda c: {**c, "transform": [{"name": "v2.ToImage"}]},
    "a normalisation of two channels": lambda c: {
        **c,
        "transform": [{"name": "v2.ToImage"}, TO_FLOAT, {**NORMALIZE, "mean": [0.5] * 2, "std": [0.5] * 2}],
    },
}


@pytest.mark.parametrize("kind", BAD)
def test_a_description_that_does_not_fit_gives_one_sentence(copy, kind):
    rewrite(copy, BAD[kind])
    with pytest.raises(ValueError, match=r"model.json and model.safetensors are not a model") as raised:
        load_model(copy)
    assert "\n" not in str(raised.value)
    assert re.search(r"[^.]\.$", str(raised.value))


def refined(origin=4, gain=(4, 4)):
    """Tensors of a refinement of four logits."""
    return {
        "refinement.origin": torch.zeros(origin),
        "refinement.unit": torch.ones(4),
        "refinement.gain": torch.zeros(gain),
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: without("weight")(tensors),
        lambda tensors: {**tensors, "weight": tensors["weight"][:, :5]},
        lambda tensors: {**tensors, "backbone.more": torch.zeros(3)},
        lambda tensors: {**tensors, "random": torch.zeros(3, 4)},
        lambda tensors: {**tensors, "weight": tensors["weight"].long()},
        lambda tensors: {**tensors, "weight": tensors["weight"] * float("nan")},
        lambda tensors: {**tensors, "bias": torch.zeros(4, dtype=torch.int64)},
        lambda tensors: {**tensors, "refinement.origin": torch.zeros(4)},
        lambda tensors: {**tensors, **refined(gain=(3, 4))},
        lambda tensors: {**tensors, **refined(origin=3)},
    ],
)
def test_tensors_that_do_not_fit_give_one_sentence(copy, change):
    rewrite(copy, tensors=lambda tensors: {k: v.contiguous() for k, v in change(tensors).items()})
    with pytest.raises(ValueError, match=r"are not a model that can be used: .*\.$"):
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
    for content in (b"", b"\x80\x04", b"[" * 100_000, pickle.dumps(Malicious()), b'{"format": 1}'):
        (copy / "model.json").write_bytes(content)
        assert main(["predict", str(copy), "photo.jpg"]) == 1
        assert re.search("are not a model that can be used", capsys.readouterr().err)
    assert not (Path(__file__).parent / "executed").exists()


def test_what_is_missing_is_named(finished, tmp_path, capsys):
    run, _ = finished
    with pytest.raises(FileNotFoundError, match=r"no model after experience 9; there are those after 1, 2\."):
        load_model(run.folder, after=9)
    with pytest.raises(FileNotFoundError, match=r"give the folder of one run: .*agcn-seed0"):
        load_model(run.folder.parent)
    with pytest.raises(FileNotFoundError, match="has a run ended there"):
        load_model(tmp_path)
    for name, message in {"gone.jpg": "There is no image", ".": "is a folder; give the files in it"}.items():
        assert main(["predict", str(run.folder), str(tmp_path / name)]) == 1
        assert message in capsys.readouterr().err


def test_an_open_image_has_the_predictions_of_its_file(finished, tmp_path):
    model = load_model(finished[0].folder)
    gradient = np.linspace(0, 65535, 40 * 30).reshape(30, 40)
    sideways = Image.fromarray((gradient / 256).astype(np.uint8)).convert("RGB")
    exif = sideways.getexif()
    exif[ExifTags.Base.Orientation] = 6
    sideways.save(tmp_path / "sideways.png", exif=exif)
    Image.fromarray(gradient.astype(np.uint16)).save(tmp_path / "16 bit.png")
    for path in tmp_path.iterdir():
        assert model.predict(Image.open(path)) == model.predict(path)


def test_images_and_sizes_that_cannot_be_predicted_are_named(finished):
    model = load_model(finished[0].folder)
    with pytest.raises(TypeError, match=r"Photos must be paths, PIL images or tensors .*, not ndarray\."):
        model.predict([np.zeros((3, 8, 8))])
    with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
        model.predict([], batch_size=0)
