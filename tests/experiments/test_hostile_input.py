"""Wrong options and files end in an exit code and one sentence; no exception leaves the command line."""

import contextlib
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tracemalloc
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torchvision.models import VisionTransformer

from avalanche_agcn import checks
from avalanche_agcn.__main__ import main as package_main
from avalanche_agcn.benchmarks import SplitScenes
from avalanche_agcn.benchmarks.coco import read_instances
from avalanche_agcn.benchmarks.csv_files import read_csv
from avalanche_agcn.benchmarks.nus_wide import read_image_list
from avalanche_agcn.benchmarks.voc import read_objects
from avalanche_agcn.checks import read_json
from avalanche_agcn.experiments import build
from avalanche_agcn.experiments.checkpoint import load_state, save_state
from avalanche_agcn.experiments.cli import main, make_parser, settings_of
from avalanche_agcn.experiments.exit_codes import returns_exit_code
from avalanche_agcn.experiments.folder import STATE_FILE
from avalanche_agcn.experiments.methods import METHODS, alternatives
from avalanche_agcn.experiments.results import METRICS, RESULTS_FILE, read_table
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, TYPES, make_settings
from avalanche_agcn.models import load_word_vectors, word_vectors
from avalanche_agcn.models.backbones import Backbone

NAME = "agcn-seed0"
DEEP = "[" * 100_000
SMOKE_AGCN = ["--smoke", "--method", "agcn"]


def sentence(capsys):
    """The last line of the errors, which must be a sentence; there must be no traceback."""
    text = capsys.readouterr().err
    last = text.strip().splitlines()[-1]
    assert "Traceback" not in text
    assert last.endswith((".", "!", "?")), last
    return last


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--epochs 0", "the setting train_epochs must be at least 1, not 0"),
        ("--lr nan", "the setting lr must be a finite number, not nan"),
        ("--seed 4294967296", "seed must be at most 4294967295, not 4294967296"),
        ("--workers -1", "num_workers must be at least 0"),
        ("--validation-size 1.0", "validation_size must be below 1, not 1.0"),
        ("--image-size 100000", "image_size must be at most 2048, not 100000"),
        ("--split-lists missing.zip", r"split_lists \(missing.zip\) need the images of their data"),
        ("--set benchmark=wide", "the benchmark 'wide' needs its images"),
        ("--cache=", "the setting cache must be text that is not empty, not ''"),
        ("--out=", "--out must not be empty"),
        ("--set negatives=3", "negatives must be 'memory' or 'statistics', not 3"),
        ("--set seed=[]", "there is nothing to run"),
        ("--set seed=a", "seed must be a whole number, not 'a'"),
        ("--set method=3", "unknown method 3"),
        ("--set method_settings=3", "method_settings must be settings by name"),
        ("--set n_experiences=2.0", "n_experiences must be a whole number or none, not 2.0"),
        ("--set polo=avg", r"unknown settings \['polo'\] \(did you mean pool\?\) for agcn"),
        (f"--set pool={'[' * 5000}", "--set 'pool' has a value that is nested too deeply, .*: give a number"),
        ("--set pool", "--set needs NAME=VALUE"),
        ("--method er --memory 0", r"er needs a memory: mem_size \(--memory\) must be at least 1"),
        ("--method scr --set temperature=0", "temperature must be above 0, not 0"),
        ("--method ewc --memory 5", r"\['mem_size'\] for ewc; these methods have .*'ewc_lambda'.*--help"),
        ("--method er lwf --preset official", r"unknown settings \['preset'\] for er, lwf"),
        ("--method ewc --negatives memory", "ewc cannot use negatives from memory"),
        ("--method l3a csc --pseudo-labels", "l3a cannot use pseudo_labels"),
        ("--method agcn --seed 1 1", "several runs would have the folder agcn-seed1"),
        ("--method er prs --label mine", "several runs would have the folder mine-seed0"),
        ("--method magic", "unknown method 'magic'; known are multitask.*, agcn_statistics, .*er_negatives"),
        ("--method finetunning", r"unknown method 'finetunning' \(did you mean finetuning\?\); known are"),
        ("--method er agcn --word-vectors absent.txt", "there is no file absent.txt of word vectors"),
        ("--protocol B10", "protocol must be 'paper' or 'B<n>-C<m>' .*, not 'B10'"),
        ("--loss focal", "--loss: invalid choice: 'focal'"),
        ("--config absent.toml", "absent.toml"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_written(options, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main("coco", None, options.split()) == 2
    assert re.search(message, " ".join(capsys.readouterr().err.split()))
    assert list(tmp_path.iterdir()) == []


def test_every_number_among_the_settings_has_a_range():
    numbers = [name for name, kind in TYPES.items() if {int, float} & {*alternatives(kind)}]
    assert len(numbers) >= 20
    for name in numbers:
        with pytest.raises(ValueError, match=f"the setting {name} must be (at least|above) .*, not -1"):
            make_settings("coco", **{name: -1})
        with pytest.raises(ValueError, match=f"the setting {name} must be (at most|below) .*, not {10**31}"):
            make_settings("coco", **{name: 10**31})


@pytest.mark.parametrize("method", METHODS)
def test_every_number_among_the_settings_of_methods_has_a_range(method):
    for name, argument in METHODS[method].arguments.items():
        # A decision of L3A is about logits, which may be any number.
        if {int, float} & {*alternatives(argument.annotation)} and name != "decision":
            with pytest.raises(ValueError, match=f"the setting {name} must be (at least|above) .*, not -101"):
                make_settings("coco", method=method, **{name: -101})


@pytest.mark.parametrize(("device", "reason"), [("meta", "it computes nothing"), ("cuda:99", "")])
def test_a_device_that_cannot_be_used_here_is_named(device, reason, capsys, tmp_path):
    run = partial(main, "coco", None, [*SMOKE_AGCN, "--out", str(tmp_path), "--device", device])
    for command in (run, partial(package_main, ["predict", "RUN", "a.jpg", "--device", device])):
        assert command() == 1
        assert f"the device '{device}' cannot be used here ({reason}" in sentence(capsys)


def test_no_memory_is_recorded_and_used_as_none(tmp_path):
    options = [*SMOKE_AGCN, "--memory", "0"]
    (wanted,) = settings_of(make_parser("coco", None).parse_args(options))
    assert wanted.method_settings["mem_size"] == 0
    strategy = Run(wanted, tmp_path, log=lambda text: None).strategy
    assert not [plugin for plugin in strategy.plugins if hasattr(plugin, "storage_policy")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_experiences": 2.0}, "n_experiences must be a whole number, not 2.0"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"validation_size": float("nan")}, "validation_size=nan must be a share below 1"),
        ({"n_classes": True}, "n_classes must be a whole number"),
    ],
)
def test_arguments_of_benchmarks_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        SplitScenes(**{"n_classes": 4, "n_experiences": 2, "n_train": 40, "n_test": 20, **arguments})


def test_a_network_that_cannot_take_the_image_size_is_named(tmp_path, monkeypatch, capsys):
    vit = VisionTransformer(64, patch_size=16, num_layers=1, num_heads=1, hidden_dim=8, mlp_dim=8)
    backbone = Backbone(vit, num_features=1000)
    backbone.check_image_size(64)
    monkeypatch.setattr(build, "make_backbone", lambda settings: backbone)
    assert main("coco", None, [*SMOKE_AGCN, "--out", str(tmp_path)]) == 1
    assert "this network cannot take images of 32 pixels (Wrong image height" in sentence(capsys)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", {"settings": {"batch_size": 8}}, "a.json has format 1, but this"),
        ("a.json", {"settings": 3, "format": 2}, "must have settings by name, such as `lr = 1e-4`, not 3"),
        ("a.json", {"settings": None, "format": 2}, "settings by name, such as `lr = 1e-4`, not None"),
        ("a.json", {"settings": [1], "format": 2}, "must have settings by name"),
        ("a.json", {"seed": [[1]]}, "seed must be a whole number, not a list of 1"),
        ("a.json", {"seed": "a"}, "seed must be a whole number, not 'a'"),
        ("a.json", {"method": [3]}, "unknown method 3"),
        ("a.json", {"method": {"a": 1}}, "unknown method {'a': 1}"),
        ("a.json", {"method_settings": [1]}, "method_settings must be settings by name"),
        ("a.json", {"negatives": {"a": 1}}, "negatives must be 'memory' or 'statistics'"),
        ("a.json", {"benchmark": 3}, "benchmark must be"),
        ("a.json", "[]", "must have settings by name"),
        ("a.json", DEEP, "is nested too deeply"),
        ("a.json", '{"lr": NaN}', "is not JSON"),
        ("a.json", "\x00", "is not JSON"),
        ("a.toml", "lr = ", "is not TOML"),
        ("a.toml", "a = " + DEEP, "is not TOML"),
        ("a.toml", "lr = inf", "lr must be a finite number"),
    ],
)
def test_a_config_with_wrong_content_is_named(tmp_path, capsys, name, content, message):
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / name).write_text(text)
    assert main("coco", None, ["--config", str(tmp_path / name)]) == 2
    assert message in sentence(capsys)


COCO = {
    "images": [{"id": k, "file_name": f"{k}.jpg"} for k in range(4)],
    "annotations": [{"id": k, "image_id": k, "category_id": 1 + k % 2} for k in range(4)],
    "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
}
GONE = object()


def replaced(content, path, value):
    """A copy of nested lists and dictionaries with another value at a place, or without it."""
    if not path:
        return value
    changed = copy.copy(content)
    if value is GONE and len(path) == 1:
        del changed[path[0]]
    else:
        changed[path[0]] = replaced(content[path[0]], path[1:], value)
    return changed


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((), [], "must be an object with names, but is a list of 0"),
        ((), None, "must be an object with names, but is None"),
        ((), "text", "must be an object with names, but is 'text'"),
        (("annotations", 2, "image_id"), GONE, r"annotations\[2\] has no 'image_id'"),
        (("images", 1, "file_name"), GONE, r"images\[1\] has no 'file_name'"),
        (("images",), None, "images must be a list, but is None"),
        (("images", 0), 3, r"images\[0\] must be an object with names, but is 3"),
        (("categories", 1, "name"), GONE, r"categories\[1\] has no 'name'"),
        (("annotations", 0, "category_id"), 9, r"annotations\[0\].category_id must be the id"),
        (("images", 0, "file_name"), "../../x", r"images\[0\].file_name must be .*'../../x'"),
        (("images", 0, "id"), "a", r"images\[0\].id must be a whole number, but is 'a'"),
        (("images", 0, "id"), 2**70, "image_id must be the id of an image"),
        ((), DEEP, "nested too deeply"),
    ],
)
def test_coco_annotations_with_wrong_content_are_named_with_the_place(tmp_path, place, value, message):
    path = tmp_path / "instances.json"
    path.write_text(DEEP if value is DEEP else json.dumps(replaced(COCO, place, value)))
    with pytest.raises(ValueError, match=rf"instances.json.*{message}"):
        read_instances(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"words": ["person"], "vectors": [[float("nan"), 1.0]]}, "not finite"),
        ({"words": ["person"], "vectors": [[0.0, 0.0]]}, "only zeros"),
        ({"words": ["person"], "vectors": [["a", "b"]]}, "vectors of numbers"),
        ({"words": [3], "vectors": [[1.0]]}, "words of type str"),
        ({"words": ["person"], "vectors": np.zeros((1, 0))}, "vectors of shape"),
        ({"words": ["person"]}, "is not an .npz"),
        ({}, "is not an .npz"),
    ],
)
def test_word_vectors_with_wrong_content_are_named(tmp_path, arrays, message):
    np.savez(tmp_path / "words.npz", **{name: np.array(value) for name, value in arrays.items()})
    with pytest.raises(ValueError, match=message):
        load_word_vectors(["person"], tmp_path / "words.npz")


def test_an_image_that_a_worker_cannot_read_ends_in_one_sentence(tmp_path, capsys):
    names = [f"{subset}2014/{k}.jpg" for subset in ("train", "val") for k in range(4)]
    texts = {f"annotations/instances_{name}2014.json": json.dumps(COCO) for name in ("train", "val")}
    for name, text in {**dict.fromkeys(names, "not an image"), **texts}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    options = ["--data", str(tmp_path), "--backbone", "small", "--image-size", "32", "--method", "finetuning"]
    options += ["--n-classes", "2", "--n-experiences", "1", "--workers", "1", "--out", str(tmp_path / "out")]
    assert main("coco", None, options) == 1
    assert "is not an image that can be read" in sentence(capsys)


def test_every_reader_of_text_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(checks.read_file, "__kwdefaults__", {"most": 100})
    path = tmp_path / "long.txt"
    path.write_text("x" * 101)
    readers = [read_csv, read_table, read_image_list, read_objects]
    for read in readers:
        with pytest.raises(ValueError, match=r"long.txt has more than .* MiB, the most that is read"):
            read(path)
    with pytest.raises(ValueError, match=r"long.txt has more than 0 MiB"):
        read_json(path, most=100)


def test_reading_a_small_file_takes_little_memory_whatever_its_limit(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"0123456789")
    tracemalloc.start()
    try:
        assert checks.read_file(path, most=2**34) == b"0123456789"
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_a_file_that_does_not_fit_into_memory_is_named(tmp_path):
    resource = pytest.importorskip("resource")  # not on Windows
    path = tmp_path / "large.safetensors"
    path.touch()
    os.truncate(path, 2**32)  # takes no place on the disk
    code = "import sys; from avalanche_agcn.checks import read_file; read_file(sys.argv[1], most=2**34)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31)),
    )
    assert f"MemoryError: {path} does not fit into the free memory: end other" in done.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.parametrize("n_bytes", [3 * 2**20 + 1, 5 * 2**20])
def test_a_pipe_is_read_to_its_end_or_limit(tmp_path, n_bytes):
    os.mkfifo(tmp_path / "pipe")
    content = os.urandom(n_bytes)

    def write():
        with contextlib.suppress(BrokenPipeError):
            (tmp_path / "pipe").write_bytes(content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        if n_bytes > 2**22:
            with pytest.raises(ValueError, match="has more than 4 MiB"):
                checks.read_file(tmp_path / "pipe", most=2**22)
        else:
            assert checks.read_file(tmp_path / "pipe", most=2**22) == content
    finally:
        writer.join()


def test_word_vectors_that_are_small_only_because_they_are_compressed_are_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(word_vectors, "MAX_BYTES_OF_VECTORS", 10_000)
    path = tmp_path / "words.npz"
    np.savez_compressed(path, words=np.array(["person"]), vectors=np.zeros((1, 9999)))
    assert path.stat().st_size < 10_000
    with pytest.raises(ValueError, match=r"words.npz' is not an .npz .* the most that is read"):
        load_word_vectors(["person"], path)


@returns_exit_code
def end_in(error):
    raise error


def test_a_printed_message_is_short_whatever_it_quotes(capsys):
    assert end_in(ValueError("The file has " + "x" * 10**6 + "; download it again.")) == 1
    text = capsys.readouterr().err
    assert text.startswith("Stopped: The file has xxx")
    assert text.endswith("xxx; download it again.\n")
    assert len(text) < 1100


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of AGCN: its folder, results and state."""
    out = tmp_path_factory.mktemp("finished")
    assert main("coco", None, [*SMOKE_AGCN, "--out", str(out)]) == 0
    return out / NAME


@pytest.fixture
def report(finished, tmp_path, capsys):
    """A function that reports changed results; returns the exit code and the errors."""

    def run(content):
        folder = tmp_path / "runs" / NAME
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULTS_FILE).write_text(content if isinstance(content, str) else json.dumps(content))
        capsys.readouterr()
        code = package_main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report" / "inner")])
        return code, capsys.readouterr().err

    return run


def results_of(finished):
    return json.loads((finished / RESULTS_FILE).read_text())


def decisions(**change):
    """Counts of found labels, with a change."""
    counts = {"thresholds": [0.5], "true": [0] * 4, "found": [[0] * 4], "right": [[0] * 4]}
    return {"decisions": counts | change}


def worst(**change):
    """A badly scored picture, with a change."""
    return {
        "worst": [{"image": 0, "labels": [], "probability": 1.0, "class": "a", "error": "wrong"} | change]
    }


FOREIGN = ("3", "null", "[]", '"a"', "{}", '{"method": "agcn"}', '{"unknown": 1}')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((text, "is not JSON") for text in ("", "{")),
        *((text, "is not a results.json of this package") for text in FOREIGN),
        (DEEP, "is nested too deeply"),
        ('{"nested": {}}', "reads format 2: run it again"),
        ({"nested": 3}, "nested must be"),
        ({"nested": {"mAP": [[1.0]]}}, "nested must be an object that has 'CF1'"),
        ({"nested": {m: [[50.0], [1.0]] for m in METRICS}}, "row t with t + 1 scores"),
        ({"nested": {m: [[50.0]] for m in METRICS}}, "nested.mAP must be 2 rows, but is a list of 1"),
        (
            {"nested": {"mAP": [[50.0], [1.0, 1.0]], "CF1": [[], [1.0, 1.0]], "OF1": [[], [1.0, 1.0]]}},
            "the same",
        ),
        (
            {"nested": {m: [[50.0], [1.0, 1e5]] for m in METRICS}},
            "nested.mAP[1][1] must be at most 100, but is 100000.0",
        ),
        ({"class_names": ["a", "a", "b", "c"]}, "must be different names"),
        ({"class_names": ["a\nb", "c", "d", "e"]}, "printable characters"),
        ({"classes_per_experience": [0, 4]}, "classes_per_experience[0] must be at least 1, but is 0"),
        ({"per_class_ap": {}}, "per_class_ap must be the AP of each of the class_names"),
        ({"seconds": {"train": 1.0, "total": 1.0}}, "seconds must be an object that has 'eval'"),
        ({"stages": {"mAP": [50.0, 40.0]}}, "stages must be an object that has 'mean_class_F1'"),
        ({"stages": {"mAP": [], "mean_class_F1": [1.0], "OF1": [1.0]}}, "one for each of 2 experiences"),
        ({"decisions": {"thresholds": [], "true": [0], "found": [], "right": []}}, "a list that has 0.5"),
        ({"decisions": {"thresholds": [0.5], "true": [0], "found": [], "right": []}}, "true must be 4"),
        (decisions(found=[[0] * 3]), "decisions.found must be 1 × 4 counts"),
        (decisions(right=[[0] * 4] * 2), "decisions.right must be 1 × 4 counts"),
        (decisions(true=[0, 0, 0, -1]), "decisions.true[3] must be at least 0, but is -1"),
        ({"classes_per_experience": [4, 4]}, "sum to the 4 class_names, but is (4, 4)"),
        ({"environment": {"packages": None}}, "environment.packages must be an object"),
        ({"acm": [[1.0]]}, "acm must be 4 × 4 probabilities"),
        ({"acm": [[1.5] * 4] * 4}, "acm[0][0] must be a probability between 0 and 1, but is 1.5"),
        ({"seconds": {"train": 1.0, "eval": 1.0, "total": 1e308}}, "at most 10000000000, but is 1e+308"),
        ({"seconds": {"train": -1.0, "eval": 1.0, "total": 1.0}}, "at least 0, but is -1.0"),
        (worst(image=-1), "worst[0].image must be at least 0 or text, but is -1"),
        (worst(**{"class": "x"}), "a label of worst[0] must be one of the class_names, but is 'x'"),
        ({"seed": "a"}, "seed must be a whole number, but is 'a'"),
        ({"more": 1}, "has 'more', which results do not have"),
        ({"pictures": [{"image": "../x.jpg", "labels": [], "probabilities": []}]}, "within the folder"),
        ({"pictures": [{"image": 0}]}, r"pictures[0] has no 'labels'"),
        ({"n_images": {"train": [1]}}, "n_images.train must be 2 numbers, but is a list of 1"),
        ({"settings": {"image_size": 30_000}}, "the setting image_size must be at most 2048, not 30000"),
    ],
)
def test_results_with_wrong_content_are_named_with_the_place(finished, report, change, message):
    code, text = report(change if isinstance(change, str) else results_of(finished) | change)
    assert code == 1
    assert message in text
    assert RESULTS_FILE in text


def test_unknown_fields_of_a_picture_do_not_reach_the_page(finished, report, tmp_path):
    content = results_of(finished)
    content["pictures"][0] |= {"photo": 999, "thresholds": 5, "note": "unknown field"}
    assert report(content)[0] == 0
    page = (tmp_path / "report" / "inner" / "report.html").read_text()
    assert '"photo":0' in page
    assert '"photo":999' not in page
    assert "unknown field" not in page


def test_names_are_escaped_in_each_format_and_no_file_is_written_outside(finished, report, tmp_path):
    content = results_of(finished) | {"pictures": None, "worst": None, "cooccurrence": None}
    names = ["=cmd|' /C calc'!A0", "<script>alert(1)</script>", "\\input{/etc/passwd}", "a|b $x$ [l](u)"]
    content["settings"]["label"] = "+/../../<img src=x onerror=alert(1)> | \\input{x}"
    content["per_class_ap"] = dict(zip(names, content["per_class_ap"].values(), strict=True))
    assert report(content | {"class_names": names, "benchmark": "/../../EVIL<b>"})[0] == 0
    inside = tmp_path / "report" / "inner"
    others = {path for path in tmp_path.rglob("*") if path.is_file() and inside not in path.parents}
    assert others == {tmp_path / "runs" / NAME / RESULTS_FILE}
    written = {path.suffix: path.read_text() for path in inside.glob("table-*.*")}
    assert "&lt;img src=x onerror=alert(1)&gt; \\|" in written[".md"]
    assert "<img" not in written[".md"]
    assert "\\textbackslash{}input\\{x\\}" in written[".tex"]
    assert "\n'+/../../<img" in written[".csv"]
    (classes,) = inside.glob("classes-*.csv")
    assert "'=cmd|" in classes.read_text()
    page = (inside / "report.html").read_text()
    assert "<img src=x" not in page
    assert "<script>alert" not in page


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """The state of a run of AGCN after its second batch."""
    (wanted,) = settings_of(make_parser("coco", None).parse_args(SMOKE_AGCN))
    often = replace(wanted, checkpoint_minutes=0.0)
    run = Run(often, tmp_path_factory.mktemp("unfinished"), log=lambda text: None)
    save = run.checkpoints._save

    def save_and_stop(position):
        save(position)
        if position["batch"] == 2:
            raise KeyboardInterrupt

    run.checkpoints._save = save_and_stop
    with pytest.raises(KeyboardInterrupt):
        run.run()
    return load_state(run.folder / STATE_FILE) | {"settings": wanted.as_dict()}


BETWEEN = {"trained": False, "within": None}
WRONG_IN_FINISHED = [
    ("position", 3),
    ("position", {"experience": "a", **BETWEEN}),
    ("position", {"experience": 99, **BETWEEN}),
    ("position", {"experience": 1, **BETWEEN, "within": {"epoch": 0}}),
    *(("model", value) for value in ({}, None)),
    ("settings", 3),
    ("settings", {"method": "agcn", "batch_size": 8}, "has format 1, but this version .* format 2"),
    ("seconds", {"train": "a"}),
    ("plugins", []),
    ("random", {}),
    ("memories", [{}]),
    ("nested", None),
    ("clock", 3),
    ("layout", None),
    ("layout", ["Gone"], "another version"),
    *(("nested average_precision", value) for value in ({}, {"test": None}, {"test": torch.zeros(())})),
]
WRONG_IN_UNFINISHED = [
    ("optimizer", {}),
    *(("optimizer state 0", value) for value in (3, {})),
    ("optimizer state 0 exp_avg", torch.zeros(3)),
    ("optimizer state 0 step", "a"),
    ("optimizer param_groups 0 lr", None),
    ("optimizer param_groups 0 amsgrad", 3),
    ("position within epoch", 99),
    *(("position within batch", value) for value in (-1, 99)),
]


STATES = [("finished", *wrong) for wrong in WRONG_IN_FINISHED]
STATES += [("unfinished", *wrong) for wrong in WRONG_IN_UNFINISHED]


@pytest.mark.parametrize(("kind", "place", "value", "reason"), [(*one, "")[:4] for one in STATES])
def test_a_state_with_a_valid_checksum_and_wrong_content_is_named_and_kept(
    finished, unfinished, tmp_path, capsys, kind, place, value, reason
):
    state = load_state(finished / STATE_FILE) if kind == "finished" else unfinished
    path = tmp_path / NAME / STATE_FILE
    save_state(path, replaced(state, [int(key) if key == "0" else key for key in place.split()], value))
    before = path.read_bytes()
    assert main("coco", None, [*SMOKE_AGCN, "--resume", "--out", str(tmp_path)]) == 1
    assert re.search(f"{path}.*{reason}", sentence(capsys))
    assert path.read_bytes() == before


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["../../x", "a|b", "\x1b[31m", "=1+1", "nan", "9" * 400]),
    st.lists(st.integers(-2, 3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def fuzz(n_cases):
    """Try a test with that many drawn cases, the same each time."""
    how = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
    return lambda test: seed(15)(settings(max_examples=n_cases, **how)(test))


def places(content, path=()):
    """Every place in nested lists and dictionaries."""
    yield path
    if isinstance(content, (dict, list)):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield from places(content[key], (*path, key))


def drawn_change(data, content):
    path = data.draw(st.sampled_from(sorted(places(content), key=str)))
    return replaced(content, path, data.draw(JUNK))


@pytest.mark.parametrize("n", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_fuzzed_results_end_in_an_exit_code(finished, report, n):
    @fuzz(n)
    @given(data=st.data())
    def check(data):
        text = json.dumps(drawn_change(data, results_of(finished)))  # which may have NaN
        code, message = report(text)
        assert code in (0, 1)
        assert "Traceback" not in message

    check()


def check_settings(options, capsys):
    """Options give settings, or an exit code and a sentence."""
    try:
        settings_of(make_parser("coco", None).parse_args(options))
    except (ValueError, OSError):  # which main turns into a sentence
        assert main("coco", None, options) == 2
        sentence(capsys)


@fuzz(40)
@given(data=st.data())
def test_fuzzed_configs_give_settings_or_an_exit_code(tmp_path, capsys, data):
    content = make_settings("scenes", SMOKE, method="er").as_dict()
    changed = drawn_change(data, {"settings": content, "format": content["format"]})
    (tmp_path / "a.json").write_text(json.dumps(changed))
    check_settings(["--config", str(tmp_path / "a.json")], capsys)


@fuzz(25)
@given(name=st.sampled_from(sorted(TYPES)), value=JUNK, method=st.sampled_from(["agcn", "er", "l3a"]))
def test_fuzzed_options_give_settings_or_an_exit_code(capsys, name, value, method):
    check_settings(["--smoke", "--method", method, "--set", f"{name}={value}"], capsys)


@fuzz(40)
@given(data=st.data())
def test_fuzzed_annotations_are_read_or_named(tmp_path, data):
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(drawn_change(data, COCO)))
    try:
        table = read_instances(path)
    except ValueError:
        with pytest.raises(ValueError, match=r"instances\.json"):
            read_instances(path)
    else:
        assert table.labels.shape == (len(table.files), len(table.class_names))


TENSORS = st.sampled_from([torch.zeros(()), torch.full((3,), torch.nan), torch.ones(2, 2, dtype=torch.long)])


@pytest.mark.slow
@fuzz(100)
@given(data=st.data())
def test_fuzzed_states_end_in_an_exit_code(finished, unfinished, tmp_path, capsys, data):
    state = data.draw(st.sampled_from([load_state(finished / STATE_FILE), unfinished]))
    shutil.rmtree(tmp_path / NAME, ignore_errors=True)
    path = data.draw(st.sampled_from(sorted(places(state), key=str)))
    try:
        save_state(tmp_path / NAME / STATE_FILE, replaced(state, path, data.draw(JUNK | TENSORS)))
    except (OverflowError, UnicodeEncodeError):  # which no state can have
        return
    code = main("coco", None, [*SMOKE_AGCN, "--resume", "--out", str(tmp_path)])
    assert code in (0, 1)
    text = capsys.readouterr().err
    assert "Traceback" not in text
    assert code == 0 or text.strip()
