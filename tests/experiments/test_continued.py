"""Runs that are continued with new classes end as one run over all experiences."""

import csv
import functools
import itertools
import json
import ntpath
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from PIL import Image

from avalanche_agcn import load_run
from avalanche_agcn.__main__ import main
from avalanche_agcn.benchmarks.continued import join_files
from avalanche_agcn.benchmarks.image_files import ImageFiles
from avalanche_agcn.checks import relative_path
from avalanche_agcn.experiments import checkpoint, cli, report
from avalanche_agcn.experiments.methods import CHOICES
from avalanche_agcn.experiments.results import RESULTS_FILE
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import make_settings

CLASSES = ["person", "bicycle", "car", "dog", "cat", "boat", "kite", "sheep"]
RUNS = [CLASSES[:4], CLASSES[4:6], CLASSES[6:]]  # a run, and what each of two further ones adds
N_PHOTOS = 24  # of each run; every third is a test photo
SMALL = ["--defaults", "paper", "--backbone", "small", "--no-pretrained", "--image-size", "16"]
SMALL += ["--batch-size", "4", "--epochs", "1", "--lr", "1e-3", "--set", "lr_gcn=1e-3", "random_features=32"]


def draw_photo(shown, number):
    """Noise with a square for each class, at its own place and in its own colour."""
    generator = torch.Generator().manual_seed(number)
    pixels = torch.randint(60, (16, 16, 3), generator=generator)
    for c in shown:
        row, column = 4 * (c // 4), 4 * (c % 4)
        pixels[row : row + 4, column : column + 4, c % 3] += 180
    return Image.fromarray(pixels.to(torch.uint8).numpy())


def write_labels(path, rows, names):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", *names])
        for name, shown in rows.items():
            writer.writerow([name, *(int(one in shown) for one in names)])


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """A folder of photos for each run, with the labels of its own classes, and one with those of all runs.

    Each photo shows one or two classes of one experience.
    """
    root = tmp_path_factory.mktemp("photos")
    (root / "all").mkdir()
    every = {"train": {}, "test": {}}
    for r, names in enumerate(RUNS):
        folder = root / f"photos{r}"
        folder.mkdir()
        parts = {"train": {}, "test": {}}
        for k in range(N_PHOTOS):
            first = 2 * (k % (len(names) // 2))  # of the experience
            shown = names[first : first + 2] if k % 5 == 0 else [names[first + k // 2 % 2]]
            name = f"{r}-{k:02}.png"
            draw_photo([CLASSES.index(one) for one in shown], 100 * r + k).save(folder / name)
            shutil.copy(folder / name, root / "all")
            part = "test" if k % 3 == 2 else "train"
            parts[part][name] = every[part][name] = shown
        for part, rows in parts.items():
            write_labels(root / f"{part}{r}.csv", rows, names)
    for part, rows in every.items():
        write_labels(root / f"{part}.csv", rows, CLASSES)
    return root


@pytest.fixture(scope="module", autouse=True)
def no_reports(tmp_path_factory):
    """Tables and plots take longest; and features are cached in a folder of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write_report", lambda *args, **kwargs: None)
        patch.setattr(report, "refresh_page", lambda *args, **kwargs: None)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def data_of(photos, run):
    """Options of the photos of one run, or of all for an empty name."""
    folder = photos / (f"photos{run}" if run != "" else "all")
    labels = ["--labels", f"{photos}/train{run}.csv", "--test-labels", f"{photos}/test{run}.csv"]
    return ["--images", str(folder), *labels]


def run(*options):
    assert cli.main("photos", None, [str(option) for option in options]) == 0


def begin(photos, out, method, *options):
    """The first run; returns its folder."""
    run(*data_of(photos, 0), *SMALL, "--method", method, "--n-experiences", 2, "--out", out, *options)
    (folder,) = [path.parent for path in out.glob(f"*/{RESULTS_FILE}")]
    return folder


def whole_run(photos, out, method, *options):
    """One run over all experiences, whose model learns of the classes as in the three runs."""
    experiences = ["--n-experiences", 4, "--set", "earlier_classes=[4, 2]"]
    run(*data_of(photos, ""), *SMALL, "--method", method, *experiences, "--out", out, *options)
    (folder,) = [path.parent for path in out.glob(f"*/{RESULTS_FILE}")]
    return folder


def outcome(folder):
    """Scores, weights and memory at the end of a run."""
    results = json.loads((folder / RESULTS_FILE).read_text())
    state = checkpoint.load_state(folder / "state.bin")
    scores = {
        name: results.get(name) for name in ("class_names", "nested", "per_class_ap", "acm", "n_images")
    }
    memories = [memory["keys"].tolist() for memory in state["memories"]]
    return scores, state["model"], memories


FROZEN = "--freeze-backbone"
CASES = [("streaming_ridge", FROZEN), ("agcn", FROZEN), ("er",), ("ewc", FROZEN)]


@pytest.fixture(scope="session")
def finished(photos, tmp_path_factory):
    """A function that returns the folder of a finished first run, made once."""
    return functools.cache(lambda *case: begin(photos, tmp_path_factory.mktemp("finished"), *case))


@pytest.fixture(scope="session")
def continued(photos, finished):
    """A function that returns the folder of a run that continues the first, made once."""

    @functools.cache
    def make(*case):
        folder = finished(*case)
        run("--continue", folder, *data_of(photos, 1), "--out", folder.parent)
        return folder.with_name(f"{folder.name}-continued")

    return make


def flatten(values):
    """The numbers and texts in nested lists and dicts, in order."""
    if isinstance(values, dict):
        values = list(values.values())
    if not isinstance(values, list):
        return [values]
    return [item for value in values for item in flatten(value)]


def compare_with_one_run(folder, whole, tolerance=0.0):
    scores, weights, memories = outcome(folder)
    expected_scores, expected_weights, expected_memories = outcome(whole)
    assert weights.keys() == expected_weights.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected_weights[name], rtol=tolerance, atol=tolerance)
    for score, expected in zip(flatten(scores), flatten(expected_scores), strict=True):
        is_near = tolerance and isinstance(expected, float)
        assert score == (pytest.approx(expected, rel=tolerance, abs=tolerance) if is_near else expected)
    assert memories == expected_memories


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_run_that_is_continued_twice_ends_as_one_run(case, photos, continued, tmp_path):
    parent = continued(*case)
    run("--continue", parent, *data_of(photos, 2), "--out", tmp_path)
    folder = tmp_path / f"{parent.name}2"
    compare_with_one_run(folder, whole_run(photos, tmp_path / "whole", *case))
    assert json.loads((folder / RESULTS_FILE).read_text())["settings"]["continues"] == str(parent)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), (FROZEN,)], ids=["trained", "frozen"])
@pytest.mark.parametrize("method", CHOICES)
def test_every_method_continues_in_new_processes_as_one_run(method, options, photos, tmp_path):
    folder = begin(photos, tmp_path / "parts", method, *options)
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # torch rounds by it
    for number, suffix in ((1, ""), (2, "-continued")):
        parent = folder.with_name(folder.name + suffix)
        command = [sys.executable, "-m", "avalanche_agcn", "run", "photos", "--continue", str(parent)]
        command += [*data_of(photos, number), "--out", str(tmp_path / "parts")]
        subprocess.run(command, check=True, env=environment)
    whole = whole_run(photos, tmp_path / "whole", method, *options)
    # Statistics of a trained network differ by the rounding of float32.
    is_rounded = not options and method in ("streaming_ridge", "agcn_statistics", "finetuning_statistics")
    tolerance = 1e-6 if is_rounded else 0.0
    compare_with_one_run(folder.with_name(f"{folder.name}-continued2"), whole, tolerance)


def test_new_photos_are_held_out_for_calibration_as_those_of_the_parent(photos, tmp_path):
    parent = begin(photos, tmp_path, "er", FROZEN, "--calibration-size", 0.25)
    settings = {
        "images": photos / "photos1",
        "labels": photos / "train1.csv",
        "test_labels": photos / "test1.csv",
    }
    benchmark = load_run(parent, **settings, log=lambda text: None).benchmark
    held_out = [len(experience.dataset) for experience in benchmark.valid_stream]
    assert held_out[2] == 4  # a quarter of 16
    assert len(benchmark.train_stream[2].dataset) == 12
    shown = torch.stack([row[1] for row in benchmark.valid_stream[2].dataset])
    assert shown[:, 4:].any()


def test_a_loaded_run_trains_as_the_command_does(photos, finished, continued):
    parent = finished("er")
    again = load_run(parent, device="cpu", log=lambda text: None)
    with pytest.raises(ValueError, match="test_size can only be set for new photos"):
        load_run(parent, test_size=0.5, log=lambda text: None)
    assert again.benchmark.class_names == RUNS[0]
    assert (again.n_trained, len(again.new_experiences)) == (2, 0)
    labels = {"labels": photos / "train1.csv", "test_labels": photos / "test1.csv"}
    loaded = load_run(parent, images=photos / "photos1", **labels, log=lambda text: None)
    assert loaded.benchmark.class_names == RUNS[0] + RUNS[1]
    for experience in loaded.new_experiences:
        loaded.strategy.train(experience, eval_streams=[])
    _, expected, _ = outcome(continued("er"))
    for name, tensor in loaded.strategy.model.state_dict().items():
        assert torch.equal(tensor, expected[name])
    loaded.strategy.eval(loaded.benchmark.test_stream)


def test_a_state_of_a_finished_run_fits_a_strategy_without_the_recorder_of_runs(finished):
    parent = finished("ewc", FROZEN)
    loaded = load_run(parent, log=lambda text: None)
    checkpoint.load_strategy(parent / "state.bin", loaded.strategy, loaded.benchmark.train_stream)
    other = load_run(finished("er"), log=lambda text: None)
    with pytest.raises(ValueError, match="make the strategy with the settings and plugins") as error:
        checkpoint.load_strategy(parent / "state.bin", other.strategy, other.benchmark.train_stream)
    assert "--overwrite" not in str(error.value)


@pytest.fixture
def moved(photos, finished, tmp_path):
    """A function that copies photos and a finished run to another place; the first ones cannot be found."""

    def move(*case):
        folder = tmp_path / "results" / finished(*case).name
        shutil.copytree(finished(*case), folder)
        shutil.copytree(photos / "photos0", tmp_path / "photos0")
        content = json.loads((folder / "photos.json").read_text())
        for source in content["sources"].values():
            source.update(folder="/nowhere", folder_from_here="../../photos0")
        (folder / "photos.json").write_text(json.dumps(content))
        return folder, tmp_path / "photos0"

    return move


def remove(folder, numbers):
    for k in numbers:
        (folder / f"0-{k:02}.png").unlink()


def test_photos_that_a_method_does_not_need_again_may_be_missing(photos, continued, moved, tmp_path, capsys):
    case = ("streaming_ridge", FROZEN)
    folder, old_photos = moved(*case)
    remove(old_photos, [k for k in range(N_PHOTOS) if k % 3 != 2])  # all train photos
    remove(old_photos, [2, 5])  # two of eight test photos
    run("--continue", folder, *data_of(photos, 1), "--out", tmp_path)
    assert f"2 test photos of {folder} cannot be found" in capsys.readouterr().out
    scores, weights, _ = outcome(tmp_path / f"{folder.name}-continued")
    _, expected, _ = outcome(continued(*case))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights.items())
    assert sum(scores["n_images"]["test"]) == 14


def test_paths_that_results_cannot_have_are_named_before_training(photos, finished, tmp_path, capsys):
    folder = tmp_path / os.fsdecode(b"caf\xe9") / "ewc-seed0"
    shutil.copytree(finished("ewc", FROZEN), folder)
    command = ["--continue", str(folder), *data_of(photos, 1), "--out", str(tmp_path)]
    assert cli.main("photos", None, command) == 1
    expected = (
        r"caf\udce9/ewc-seed0' is not UTF-8, so that results.json cannot have this path: rename the folder"
    )
    assert expected in capsys.readouterr().err


def test_missing_photos_of_a_memory_are_named(photos, moved, tmp_path, capsys):
    folder, old_photos = moved("er")
    remove(old_photos, [0])
    assert cli.main("photos", None, ["--continue", str(folder), *data_of(photos, 1), "--out", str(tmp_path)])
    said = capsys.readouterr().err
    assert "er replays photos of its memory, but 1 of 16 photos" in said
    assert "cannot be found" in said
    assert said.endswith("Put them back.\n")


def test_features_of_earlier_photos_are_read_from_the_cache(photos, finished, tmp_path, capsys):
    parent = finished("agcn", FROZEN)
    capsys.readouterr()
    run("--continue", parent, *data_of(photos, 1), "--out", tmp_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Features of")]
    assert [line.split()[4] for line in lines] == ["16", "16", "8", "8"]  # train photos, then test photos
    assert lines[0].startswith("Features of 16 of 16")  # the parent's
    assert lines[2].startswith("Features of 8 of 8")


def test_a_continued_run_is_beside_its_parent_by_default(photos, tmp_path, monkeypatch):
    parent = begin(photos, tmp_path / "here", "finetuning", FROZEN)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run("--continue", parent, *data_of(photos, 1))
    assert (parent.with_name(f"{parent.name}-continued") / RESULTS_FILE).is_file()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    monkeypatch.chdir(parent)
    run("--continue", ".", *data_of(photos, 1))  # the same run: finished before


def stop_after_saves(patch, n):
    """Stop runs as Ctrl-C does once they have saved their state ``n`` times."""
    save, saves = checkpoint.save_state, itertools.count(1)

    def save_and_stop(path, state):
        save(path, state)
        if next(saves) == n:
            raise KeyboardInterrupt

    patch.setattr(checkpoint, "save_state", save_and_stop)


def test_a_continued_run_can_be_stopped_and_resumed(photos, finished, continued, tmp_path):
    options = ["--continue", finished("er"), *data_of(photos, 1), "--out", tmp_path]
    options += ["--checkpoint-minutes", 0]
    with pytest.MonkeyPatch.context() as patch:
        stop_after_saves(patch, 3)
        assert cli.main("photos", None, list(map(str, options))) == 130
    run(*options, "--resume")
    compare_with_one_run(tmp_path / continued("er").name, continued("er"))


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_run_is_not_mixed_with_that_of_another_parent(photos, finished, tmp_path, capsys, is_finished):
    """Of the same name and settings, but trained on other photos."""
    parent = finished("ewc", FROZEN)
    rows = (photos / "train0.csv").read_text().splitlines(keepends=True)
    (tmp_path / "train.csv").write_text("".join(rows[:-1]))
    images = ["--images", photos / "photos0", "--labels", tmp_path / "train.csv"]
    options = [*SMALL, "--method", "ewc", FROZEN, "--n-experiences", 2, "--out", tmp_path / "others"]
    run(*images, "--test-labels", photos / "test0.csv", *options)
    new = [*data_of(photos, 1), "--out", tmp_path / "new"]
    with pytest.MonkeyPatch.context() as patch:
        if not is_finished:
            stop_after_saves(patch, 1)
        cli.main("photos", None, list(map(str, ["--continue", parent, *new])))
    capsys.readouterr()
    command = ["--continue", tmp_path / "others" / parent.name, *new, "--resume"]
    assert cli.main("photos", None, list(map(str, command))) == 1
    assert "was saved with other data; changed: the run that is continued; restore" in capsys.readouterr().err
    run("--continue", parent, *new, "--resume")


def test_test_photos_may_not_vanish_while_a_continued_run_is_stopped(photos, moved, tmp_path, capsys):
    """Its scores and pictures would be of other photos than before."""
    folder, old_photos = moved("streaming_ridge", FROZEN)
    command = list(map(str, ["--continue", folder, *data_of(photos, 1), "--out", tmp_path, "--resume"]))
    with pytest.MonkeyPatch.context() as patch:
        stop_after_saves(patch, 1)
        assert cli.main("photos", None, command) == 130
    (old_photos / "0-02.png").rename(tmp_path / "0-02.png")
    assert cli.main("photos", None, command) == 1
    assert "changed: the images of the test stream; restore them" in capsys.readouterr().err
    (tmp_path / "0-02.png").rename(old_photos / "0-02.png")
    run(*command)


def test_check_shows_what_a_continued_run_will_do(photos, finished, tmp_path, capsys):
    """Known classes keep their experience, and a photo without a new class is not trained on."""
    rows = ["file,labels,split", *(f"1-{k:02}.png,{'cat;dog' if k % 2 else 'dog'},train" for k in range(8))]
    (tmp_path / "new.csv").write_text("\n".join([*rows, "1-08.png,cat,test", "1-09.png,dog,test"]))
    command = ["check", "photos", "--images", str(photos / "photos1"), "--labels", str(tmp_path / "new.csv")]
    assert main([*command, "--continue", str(finished("er"))]) == 0
    printed = capsys.readouterr().out
    assert "4 new train photos show known classes only; they are not trained on" in printed
    table = [line.split() for line in printed.splitlines()]
    assert [row[:2] for row in table if row and row[0] == "3"] == [["3", "cat"]]
    assert ["3", "cat", "4", "4", "1", "*"] in table
    assert ["2", "dog"] in [row[:2] for row in table]
    assert main([*command, "--continue", str(tmp_path / "absent")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert main([*command, "--continue", str(finished("er")), "--image-size", "32"]) == 1
    assert "was trained with other settings (image_size: 16, now 32)" in capsys.readouterr().err


def test_new_photos_may_show_known_classes(photos, finished, tmp_path):
    rows = {f"1-{k:02}.png": ["cat" if k % 2 else "boat", *(["dog"] if k < 4 else [])] for k in range(8)}
    rows["1-08.png"] = ["person"]
    tests = {"1-09.png": ["dog", "boat"], "1-10.png": ["cat"], "1-11.png": ["dog"]}
    for path, shown in ((tmp_path / "new.csv", rows), (tmp_path / "test.csv", tests)):
        path.write_text("file,labels\n" + "".join(f"{name},{';'.join(own)}\n" for name, own in shown.items()))
    lines = []
    loaded = load_run(
        finished("er"),
        images=photos / "photos1",
        labels=tmp_path / "new.csv",
        test_labels=tmp_path / "test.csv",
        n_experiences=2,
        log=lines.append,
    )
    benchmark = loaded.benchmark
    assert benchmark.class_names == [
        *RUNS[0],
        "boat",
        "cat",
    ]  # names without columns are in alphabetical order
    assert benchmark.classes_per_experience == [2, 2, 1, 1]
    targets = benchmark.train_stream[2].dataset.targets[:]
    assert targets.shape == (4, 6)
    assert targets[:, 4].eq(1).all()
    assert targets[:, [0, 1, 2, 3, 5]].isnan().all()
    tested = [list(experience.dataset.image_names) for experience in benchmark.test_stream[2:]]
    assert tested == [["1-09.png", "1-11.png"], ["1-10.png"]]
    assert benchmark.test_stream[2].dataset.targets[:][:, 3].tolist() == [1, 1]
    assert lines[-3:] == [
        "New classes: boat, cat, in 2 experiences.",
        "4 new train photos also show known classes; they are trained on for new classes only.",
        "1 new train photos show known classes only; they are not trained on.",
    ]


def change_digest(folder):
    content = json.loads((folder / "model.json").read_text())
    content["backbone"]["digest"] = "0" * 64
    (folder / "model.json").write_text(json.dumps(content))


def change_benchmark(folder):
    content = json.loads((folder / RESULTS_FILE).read_text())
    content["settings"]["benchmark"] = "own"
    (folder / RESULTS_FILE).write_text(json.dumps(content))


def damage_photos(folder):
    content = json.loads((folder / "photos.json").read_text())
    content["streams"]["train"]["experiences"][0][0] = 99
    (folder / "photos.json").write_text(json.dumps(content))


def exchange_photos(folder):
    """As if the file were that of another run, with the same photos and other labels."""
    content = json.loads((folder / "photos.json").read_text())
    labels = content["sources"]["train"]["labels"]
    labels[0] = [1] if labels[0] == [0] else [0]
    (folder / "photos.json").write_text(json.dumps(content))


def test_a_stopped_overwrite_leaves_the_photos_of_the_earlier_run(photos, finished, tmp_path):
    folder = tmp_path / "ewc-seed0"
    shutil.copytree(finished("ewc", FROZEN), folder)
    before = (folder / "photos.json").read_bytes()
    settings = make_settings(
        "photos",
        **{**load_run(folder, log=lambda text: None).settings.select("method", "backbone", "image_size")},
        pretrained=False,
        dataset_root=str(photos / "photos1"),
        labels=str(photos / "train1.csv"),
        test_labels=str(photos / "test1.csv"),
        n_experiences=2,
    )
    replaced = Run(settings, tmp_path, overwrite=True, log=lambda text: None)  # and not run
    assert (folder / "photos.json").read_bytes() == before
    replaced.run()
    assert json.loads((folder / "photos.json").read_text())["class_names"] == RUNS[1]


def change_photos(*path, value):
    """A function that replaces a value in ``photos.json``, at this path in it."""

    def change(folder):
        content = part = json.loads((folder / "photos.json").read_text())
        for step in path[:-1]:
            part = part[step]
        if value is None:
            del part[path[-1]]
        else:
            part[path[-1]] = value
        (folder / "photos.json").write_text(json.dumps(content))

    return change


OF_TRAIN = ("streams", "train", "experiences")
DAMAGES = [
    (("class_names", 1), "person", "class_names must be different names, but is a list of 4"),
    (("class_names", 1), "cow", "photos.json has other class_names than results.json beside it"),
    (
        ("protocol", "image_size"),
        10**9,
        "protocol.image_size must be a whole number from 8 to 4096, but is 1",
    ),
    (("protocol", "image_size"), 16.5, "protocol.image_size must be a whole number from 8 to 4096, but is 1"),
    (("protocol", "classes_per_experience"), [2, 1], "must be a list of positive numbers that sum to the 4"),
    (("sources", "train", "labels", 3), [-1], "sources.train.labels[3] must be different columns of the 4"),
    (("sources", "train", "labels", 3), [4], "sources.train.labels[3] must be different columns of the 4"),
    (("sources", "train", "labels", 3), None, "sources.train.labels must be a list of 16, the number of"),
    (("sources", "train", "names"), ["a"], "sources.train.names must be a list of 16, the number of files"),
    ((*OF_TRAIN, 0), None, "streams.train.experiences must be photos of 2 experiences, but is a list of 1"),
    ((*OF_TRAIN, 0), [1, 1], "streams.train has an image twice in one experience"),
    ((*OF_TRAIN, 0), [10**30], "streams.train has positions outside of its 16 images"),
    (("protocol", "image_size"), 32, "photos.json has image_size 32, but results.json beside it has 16"),
    (("streams", "test"), None, "streams must be train, test and others, but is an object with 1 names"),
]


@pytest.mark.parametrize(("path", "value", "message"), DAMAGES)
def test_damaged_photos_of_a_run_give_one_sentence(path, value, message, finished, tmp_path):
    folder = tmp_path / "ewc-seed0"
    shutil.copytree(finished("ewc", FROZEN), folder)
    change_photos(*path, value=value)(folder)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        load_run(folder, log=lambda text: None)
    assert str(folder / "photos.json") in str(error.value)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            None,
            ["--images", "{photos}/photos0", "--labels", "{photos}/train0.csv"],
            "has no new class: the run already knows person, bicycle",
        ),
        (None, ["--labels", "{photos}/Dog.csv"], "'Dog' differs from the known class 'dog' only in case"),
        (
            None,
            ["--images", "{photos}", "--labels", "{photos}/a.csv", "--test-labels", "{photos}/b.csv"],
            "1 of the new train photos are test photos of the run: photos0/0-02.png",
        ),
        (
            None,
            ["--images", "{photos}", "--labels", "{photos}/b.csv", "--test-labels", "{photos}/c.csv"],
            "1 of the new test photos are train photos of the run: photos0/0-00.png",
        ),
        (
            None,
            ["--images", "{photos}/all", "--test-labels", "{photos}/test2.csv"],
            "neither the run nor the train labels have: kite, sheep",
        ),
        (None, ["--images", "{photos}/photos2"], "16 of 16 images cannot be opened"),
        (
            None,
            ["--method", "agcn"],
            "other settings (method: ewc, now agcn): a run is continued with its own",
        ),
        (None, ["--lr", "0.5", "--set", "ewc_lambda=3"], "lr: 0.001, now 0.5; ewc_lambda: 1000.0, now 3"),
        (None, ["--seed", "1"], "seed: 0, now 1"),
        (None, ["--seed", "0", "1"], "seed: 0, now [0, 1]"),
        (None, ["--smoke"], "a run is continued with its own settings: leave --smoke out"),
        (None, ["--n-experiences", "3"], "n_experiences=3 must be between 1 and the number of classes, 2"),
        (
            lambda folder: (folder / RESULTS_FILE).unlink(),
            [],
            "not finished: finish it first, by its own command",
        ),
        (
            lambda folder: (folder / "state.bin").unlink(),
            [],
            "has no state.bin, from which a run is continued",
        ),
        (lambda folder: (folder / "state.bin").write_bytes(b"x"), [], "is not a saved state of this package"),
        (shutil.rmtree, [], "if it was moved, give its present place"),
        (lambda folder: (folder / "model.json").unlink(), [], "has no model.json, which says what network"),
        (
            lambda folder: (folder / "model.json").write_text('{"backbone": []}'),
            [],
            "model.json.backbone must be an object with names, but is a list of 0",
        ),
        (change_digest, [], "the weights of 'small' found here are not those that"),
        (change_benchmark, [], "was trained on a benchmark of your own"),
        (damage_photos, [], "positions outside of its 16 images"),
        (exchange_photos, [], "differ in the labels of the train stream"),
    ],
)
def test_messages_say_why_a_run_cannot_be_continued(
    change, options, message, photos, finished, tmp_path, capsys
):
    folder = tmp_path / "ewc-seed0"
    shutil.copytree(finished("ewc", FROZEN), folder)
    (photos / "Dog.csv").write_text("file,labels\n1-00.png,Dog\n1-01.png,cow\n")
    (photos / "a.csv").write_text("file,labels\nphotos0/0-02.png,cat\nphotos1/1-00.png,cow\n")
    (photos / "c.csv").write_text("file,labels\nphotos0/0-00.png,cat\nphotos1/1-08.png,cow\n")
    (photos / "b.csv").write_text("file,labels\nphotos1/1-02.png,cat\nphotos1/1-05.png,cow\n")
    if change is not None:
        change(folder)
    given = [option.format(photos=photos) for option in options]
    code = cli.main(
        "photos", None, ["--continue", str(folder), *data_of(photos, 1), "--out", str(tmp_path), *given]
    )
    assert code != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "ewc-seed0-continued" / RESULTS_FILE).exists()


@pytest.mark.parametrize("memories", [None, 5, [{}], [{"keys": torch.tensor([[9, 9]])}]])
def test_a_state_without_a_usable_memory_gives_one_sentence(memories, photos, finished, tmp_path):
    folder = tmp_path / "er-seed0"
    shutil.copytree(finished("er"), folder)
    state = checkpoint.load_state(folder / "state.bin")
    state["memories"] = memories
    checkpoint.save_state(folder / "state.bin", state)
    new = {"images": photos / "photos1", "labels": photos / "train1.csv"}
    with pytest.raises(ValueError, match=r"er-seed0/state.bin does not fit \(.*\): run it again with"):
        load_run(folder, **new, log=lambda text: None)


def test_the_folder_of_all_runs_is_not_that_of_one(photos, finished, capsys):
    folder = finished("ewc", FROZEN)
    assert cli.main("photos", None, ["--continue", str(folder.parent), *data_of(photos, 1)]) == 2
    assert f"give the folder of one: {folder}" in capsys.readouterr().err
    assert cli.main("photos", None, ["--continue", str(folder), "--images", str(photos)]) == 2
    assert "--continue needs the new photos: give --labels." in capsys.readouterr().err


def test_images_of_two_folders_keep_their_names_unless_both_have_one(tmp_path):
    first = ImageFiles(tmp_path / "a", ["x.png", "y.png"])
    joined = join_files(first, ImageFiles(tmp_path / "b" / "c", ["y.png", "z.png"]))
    assert [joined.image_name(k) for k in range(4)] == ["x.png", "y.png", "b/c/y.png", "z.png"]
    assert joined.path(2) == str(tmp_path / "b" / "c" / "y.png")
    again = join_files(joined, ImageFiles(tmp_path / "d", ["y.png"]))
    assert [again.image_name(k) for k in range(5)] == ["x.png", "y.png", "b/c/y.png", "z.png", "d/y.png"]


def test_paths_on_two_drives_of_windows_are_kept_absolute_or_named(tmp_path, monkeypatch):
    for name in ("relpath", "abspath", "commonpath"):
        monkeypatch.setattr(os.path, name, getattr(ntpath, name))
    assert relative_path("C:\\photos\\a.png", "C:\\runs") == "..\\photos\\a.png"
    assert relative_path("C:\\photos\\a.png", "D:\\runs") == "C:\\photos\\a.png"
    first, second = (ImageFiles(root, ["a.png"]) for root in ("C:\\a", "D:\\b"))
    with pytest.raises(ValueError, match=r"on different drives: copy the new ones"):
        join_files(first, second)
