"""Runs on benchmarks and photos of the user's own."""

import pytest
import torch

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.benchmarks.image_files import ImageFiles, paper_transforms
from avalanche_agcn.benchmarks.scenes import ScenesDataset
from avalanche_agcn.experiments.report import write_report
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import make_settings
from avalanche_agcn.models import load_model


def quiet(text):
    """Receives messages."""


def own_benchmark(seed=0):
    """A benchmark of a user: tensors in memory."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.utils.data.TensorDataset(torch.rand(40, 3, 32, 32, generator=generator))
    images.targets = (torch.rand(40, 4, generator=generator) < 0.4).int()
    return multilabel_benchmark(images, images, n_experiences=2, class_names=["cat", "dog", "zyx", "qwv"])


@pytest.mark.parametrize("frozen", [False, True])
def test_a_benchmark_of_the_users_own_goes_through_runs_tables_and_resume(tmp_path, frozen):
    given = {"method": "finetuning", "backbone": "small", "cache": str(tmp_path / "c")}
    settings = make_settings("own", checkpoint_minutes=0.0, freeze_backbone=frozen, **given)
    whole = Run(settings, tmp_path / "a", benchmark=own_benchmark(), log=quiet).run()
    assert (whole.benchmark, whole.class_names) == ("OwnBenchmark", ["cat", "dog", "zyx", "qwv"])
    assert (whole.settings["n_classes"], whole.settings["n_experiences"]) == (4, 2)
    stopped = Run(settings, tmp_path / "b", benchmark=own_benchmark(), log=quiet)
    stopped._train()
    stopped.trained = True
    stopped._save()
    stopped._lock.release()
    resumed = Run(settings, tmp_path / "b", benchmark=own_benchmark(), resume=True, log=quiet).run()
    assert resumed.nested == whole.nested
    write_report([whole], tmp_path / "report")
    assert "| Fine-Tuning | 1 |" in (tmp_path / "report" / "table-OwnBenchmark.md").read_text()
    with pytest.raises(ValueError, match="other data"):
        Run(settings, tmp_path / "a", benchmark=own_benchmark(seed=1), log=quiet)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"limit": 5}, "limit"),
        ({"class_order": "alphabetical", "protocol": "B2-C2"}, "protocol, class_order"),
        ({"n_classes": 3}, "n_classes"),
        ({"validation_size": 0.2}, "validation_size"),
    ],
)
def test_settings_that_a_benchmark_of_the_users_own_cannot_follow_are_named(tmp_path, given, named):
    settings = make_settings("own", method="finetuning", backbone="small", **given)
    with pytest.raises(ValueError, match=f"the settings {named} cannot change them: make the benchmark so"):
        Run(settings, tmp_path, benchmark=own_benchmark(), log=quiet)


def test_pictures_of_a_validation_stream_are_in_its_own_folder(tmp_path):
    parts = {}
    for name in ("train", "test"):
        scenes = ScenesDataset(40, class_names=["car", "dog", "person", "cat"], image_size=32, split=name)
        (tmp_path / name).mkdir()
        for k, (image, _) in enumerate(scenes):
            image.save(tmp_path / name / f"{k}.png")
        files = [f"{k}.png" for k in range(40)]
        parts[name] = ImageFiles(tmp_path / name, files, scenes.targets, class_names=scenes.class_names)
    transforms = paper_transforms(32)
    benchmark = multilabel_benchmark(*parts.values(), n_experiences=2, validation_size=0.3, **transforms)
    settings = make_settings("own", method="finetuning", backbone="small", validation_size=0.3)
    results = Run(settings, tmp_path / "out", benchmark=benchmark, log=quiet).run()
    write_report([results], tmp_path / "report")
    assert results.settings["dataset_root"] == str(tmp_path / "train")
    assert (tmp_path / "report" / "OwnBenchmark-pictures-finetuning.png").is_file()


def test_data_are_looked_at_before_weights_are_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{Run.__module__}.make_backbone", lambda settings: pytest.fail("loaded"))
    settings = make_settings("coco", dataset_root=str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError, match="absent"):
        Run(settings, tmp_path, log=quiet)


def test_own_photos_run_from_a_csv_to_a_prediction(tmp_path):
    scenes = ScenesDataset(40, class_names=["car", "dog", "person", "cat"], image_size=32)
    rows = ["file,labels"]
    for k, (image, target) in enumerate(scenes):
        image.save(tmp_path / f"{k}.png")
        rows.append(f"{k}.png,{';'.join(scenes.class_names[c] for c in target.nonzero())}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    options = {"dataset_root": str(tmp_path), "labels": str(tmp_path / "labels.csv"), "image_size": 32}
    lines = []
    settings = make_settings("photos", method="streaming_ridge", backbone="small", **options)
    run = Run(settings, tmp_path / "out", log=lines.append)
    results = run.run()
    assert "names of classes, separated by ';'; 40 images, 4 classes" in lines[0]
    assert (results.benchmark, results.class_names) == ("SplitPhotos", ["car", "cat", "dog", "person"])
    (found,) = load_model(run.folder).predict(tmp_path / "3.png")
    assert list(found.probabilities) == results.class_names


@pytest.mark.parametrize(("method", "n_epochs"), [("finetuning", 25), ("streaming_ridge", 1), ("l3a", 1)])
def test_few_photos_are_passed_over_more_often_but_once_in_closed_form(tmp_path, method, n_epochs):
    settings = make_settings("own", method=method, backbone="small", train_epochs=None, random_features=64)
    assert Run(settings, tmp_path, benchmark=own_benchmark(), log=quiet).n_epochs == n_epochs
    once = make_settings("own", method="finetuning", backbone="small", train_epochs=1)
    assert Run(once, tmp_path / "once", benchmark=own_benchmark(), log=quiet).n_epochs == 1
