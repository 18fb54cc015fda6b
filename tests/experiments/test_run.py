import functools
import re
from types import SimpleNamespace

import pytest
import torch

from avalanche_agcn.benchmarks import MultiLabelBenchmark, SplitScenes, multilabel_benchmark
from avalanche_agcn.benchmarks.image_files import ImageFiles, find_normalisation, paper_transforms
from avalanche_agcn.benchmarks.scenes import ScenesDataset
from avalanche_agcn.experiments.build import MAKERS, make_benchmark
from avalanche_agcn.experiments.folder import STATE_FILE
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.plots import open_picture
from avalanche_agcn.experiments.plots import pictures as draw_pictures
from avalanche_agcn.experiments.report import write_report
from avalanche_agcn.experiments.results import RESULTS_FILE
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings
from avalanche_agcn.methods.multi_task import TrainsJointly
from avalanche_agcn.models import Precomputed, RandomFeatures, load_model


def smoke(method="agcn", **changes):
    return make_settings("scenes", SMOKE, method=method, **changes)


def make_run(settings, out, **options):
    return Run(settings, out, **{"log": lambda text: None, **options})


def scores(results):
    return results.nested, results.per_class_ap, results.acm, results.pictures


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A function that returns the results of an uninterrupted run, made once."""
    return functools.cache(lambda settings: make_run(settings, tmp_path_factory.mktemp("whole")).run())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_and_its_seed_fixes_the_scores(tmp_path, method, whole):
    first = whole(smoke(method))
    assert len(first.acm or []) == (SMOKE["n_classes"] if METHODS[method].model == "agcn" else 0)
    jointly = issubclass(METHODS[method].strategy_class, TrainsJointly)
    assert [len(row) for row in first.nested["mAP"]] == ([0, 2] if jointly else [1, 2])
    assert scores(make_run(smoke(method), tmp_path).run()) == scores(first)
    assert scores(make_run(smoke(method, seed=1), tmp_path).run()) != scores(first)


@pytest.mark.parametrize(
    ("method", "changes"),
    [("er", {"negatives": ["memory"]}), ("lwf", {"loss": "asl"}), ("lwf", {"pseudo_labels": True})],
)
def test_settings_of_the_loss_change_the_scores_and_are_recorded(method, changes, whole):
    plain, changed = whole(smoke(method)), whole(smoke(method, **changes))
    assert scores(changed) != scores(plain)
    assert plain.settings | changes != plain.settings
    assert changed.settings | changes == changed.settings


@pytest.mark.parametrize("method", METHODS)
def test_a_b_protocol_is_that_of_the_benchmark(tmp_path, method):
    run = make_run(smoke(method, protocol="B1-C1", loss="asl", train_epochs=2), tmp_path)
    rules = run.benchmark.protocol
    assert (rules.name, rules.repeat_images, rules.unlabelled_as_negative) == ("B1-C1", True, True)
    scenes = SplitScenes(n_classes=4, n_experiences=2, n_train=64, n_test=32)
    assert run.benchmark.class_names == sorted(scenes.class_names)
    result = run.run()
    assert result.classes_per_experience == [1, 1, 1, 1]
    assert result.settings["protocol"] == "B1-C1"
    at_once = issubclass(METHODS[method].strategy_class, TrainsJointly)
    assert [len(row) for row in result.nested["mAP"]] == ([0, 0, 0, 4] if at_once else [1, 2, 3, 4])
    assert [stage is None for stage in result.stages["OF1"]] == [at_once] * 3 + [False]
    assert result.stages["mAP"][-1] == result.nested["mAP"][-1][-1]


@pytest.mark.parametrize("frozen", [False, True])
def test_l3a_has_random_features_of_the_network_or_of_its_features(tmp_path, cache, frozen):
    def features(seed):
        settings = smoke("l3a", freeze_backbone=frozen, cache=cache, seed=seed)
        return make_run(settings, tmp_path).strategy.model.backbone

    first, other = features(0), features(1)
    assert isinstance(first, RandomFeatures)
    assert isinstance(first.backbone, Precomputed) == frozen
    assert first.num_features == SMOKE["random_features"]
    assert not torch.equal(first.weight, other.weight)


@pytest.mark.parametrize("protocol", ["paper", "B0-C4", "B10-C2"])
def test_a_run_on_voc_has_the_protocols_classes_and_transforms(monkeypatch, protocol):
    made = {}
    monkeypatch.setitem(MAKERS, "voc", lambda root, **given: made.update(given, root=root))
    numbers = {"n_classes": 20, "n_experiences": 5} if protocol == "paper" else {}
    settings = make_settings("voc", dataset_root="x", backbone="small", protocol=protocol, **numbers)
    make_benchmark(settings, network := SimpleNamespace())
    assert (made["root"], made["protocol"], made["n_classes"]) == ("x", protocol, numbers.get("n_classes"))
    assert (made["image_size"], made["backbone"]) == (settings.image_size, network)
    # The transforms are the protocol's.
    assert made.keys().isdisjoint({"train_transform", "eval_transform", "flip", "split_lists"})


@pytest.mark.parametrize(("frozen", "n_benchmarks"), [(False, 1), (True, 2)])  # of images, and of features
def test_a_run_makes_each_benchmark_once(tmp_path, monkeypatch, cache, frozen, n_benchmarks):
    made = []
    make = MultiLabelBenchmark.__init__

    def record(benchmark, plan):
        made.append(plan)
        make(benchmark, plan)

    monkeypatch.setattr(MultiLabelBenchmark, "__init__", record)
    run = make_run(smoke("finetuning", freeze_backbone=frozen, cache=cache), tmp_path)
    assert len(made) == n_benchmarks
    assert made[0] is run.image_benchmark.plan
    assert max(len(experience.dataset) for experience in run.image_benchmark.train_stream) <= SMOKE["limit"]


@pytest.mark.parametrize(("n_bytes", "reason"), [(0, "not a saved state"), (-10, "damaged")])
def test_a_damaged_state_is_named_and_not_used(tmp_path, n_bytes, reason, whole):
    settings, messages = smoke("finetuning"), []
    run = make_run(settings, tmp_path)
    run.run()
    (run.folder / RESULTS_FILE).unlink()
    path = run.folder / STATE_FILE
    path.write_bytes(path.read_bytes()[:n_bytes])
    again = make_run(settings, tmp_path, resume=True, log=messages.append)
    assert any(str(path) in text and "not used" in text for text in messages)
    assert re.search(reason, "\n".join(messages))
    assert again.experience == 0
    assert scores(again.run()) == scores(whole(settings))


def test_results_so_far_are_given_after_each_experience(tmp_path):
    given = []
    results = make_run(smoke(), tmp_path, after_experience=given.append).run()
    assert len(given) == 2
    assert given[0].nested["mAP"] == results.nested["mAP"][:1]
    assert [value is None for value in given[0].per_class_ap.values()] == [False, False, True, True]
    assert len(given[0].acm) == 2
    assert scores(given[1]) == scores(results)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("method", METHODS)
def test_heads_of_every_method_train_over_a_frozen_backbone(method, tmp_path, cache, whole):
    result = make_run(smoke(method, freeze_backbone=True, cache=cache), tmp_path).run()
    assert scores(result) != scores(whole(smoke(method)))
    assert 0 <= result.summary["mAP"]["last"] <= 100
    assert "cache" not in result.settings


def test_conventions_word_vectors_and_learning_rates_are_those_of_the_settings(tmp_path):
    settings = smoke("finetuning", repeat_images=True, class_order="shuffled-1", test_images="all")
    rules = make_run(settings, tmp_path).benchmark.protocol
    assert (rules.name, rules.repeat_images, rules.unlabelled_as_negative) == ("paper", True, False)
    assert (rules.class_order, rules.test_images) == ("shuffled-1", "all")

    def strategy(method, **changes):
        return make_run(smoke(method, **changes), tmp_path).strategy

    orthogonal, plain = (
        strategy("agcn", **words).model.word_vectors for words in ({}, {"orthogonal_words": False})
    )
    assert torch.allclose(orthogonal @ orthogonal.T, torch.eye(SMOKE["n_classes"]), atol=1e-5)
    assert (plain @ plain.T).min() > 1  # GloVe's share a direction
    for changes, rates in (({}, [1e-3, 1e-3]), ({"lr_head": 1e-2}, [1e-3, 1e-2])):
        groups = strategy("finetuning", lr=1e-3, **changes).optimizer.param_groups
        assert [group["lr"] for group in groups] == rates


def test_the_momentum_of_batch_normalisation_is_the_networks_or_that_of_the_settings(tmp_path):
    def momenta(**changes):
        network = make_run(smoke("finetuning", **changes), tmp_path, overwrite=True).backbone
        return {module.momentum for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)}

    assert momenta(batchnorm_momentum=0.3) == {0.3}
    assert momenta() == {0.1}


def own_benchmark():
    """A benchmark of a user: tensors in memory."""
    generator = torch.Generator().manual_seed(0)
    images = torch.utils.data.TensorDataset(torch.rand(40, 3, 32, 32, generator=generator))
    images.targets = (torch.rand(40, 4, generator=generator) < 0.4).int()
    return multilabel_benchmark(images, images, n_experiences=2, class_names=["cat", "dog", "zyx", "qwv"])


@pytest.mark.parametrize("frozen", [False, True])
def test_a_benchmark_of_the_users_own_goes_through_runs_tables_and_resume(tmp_path, frozen):
    given = {"method": "finetuning", "backbone": "small", "cache": str(tmp_path / "c")}
    settings = make_settings("own", checkpoint_minutes=0.0, freeze_backbone=frozen, **given)
    whole = make_run(settings, tmp_path / "a", benchmark=own_benchmark()).run()
    assert (whole.benchmark, whole.class_names) == ("OwnBenchmark", ["cat", "dog", "zyx", "qwv"])
    assert (whole.settings["n_classes"], whole.settings["n_experiences"]) == (4, 2)
    stopped = make_run(settings, tmp_path / "b", benchmark=own_benchmark())
    stopped._train()
    stopped.trained = True
    stopped._save()
    stopped._lock.close()
    resumed = make_run(settings, tmp_path / "b", benchmark=own_benchmark(), resume=True).run()
    assert resumed.nested == whole.nested
    write_report([whole], tmp_path / "report")
    assert "| Fine-Tuning | 1 |" in (tmp_path / "report" / "table-OwnBenchmark.md").read_text()


OTHER_DATA = {"protocol": "B2-C2", "class_order": "alphabetical"}


@pytest.mark.parametrize("given", [OTHER_DATA, {"limit": 5, "n_classes": 3, "validation_size": 0.2}])
def test_settings_that_a_benchmark_of_the_users_own_cannot_follow_are_named(tmp_path, given):
    settings = make_settings("own", method="finetuning", backbone="small", **given)
    with pytest.raises(ValueError, match=f"the settings {', '.join(given)} cannot change your own benchmark"):
        make_run(settings, tmp_path, benchmark=own_benchmark())


def save_scenes(folder, split="train"):
    """Files of 40 drawn scenes, and the scenes."""
    scenes = ScenesDataset(40, class_names=["car", "dog", "person", "cat"], image_size=32, split=split)
    folder.mkdir()
    for k, (image, _) in enumerate(scenes):
        image.save(folder / f"{k}.png")
    return [f"{k}.png" for k in range(40)], scenes


def test_pictures_of_a_validation_stream_are_in_its_own_folder(tmp_path):
    parts = []
    for name in ("train", "test"):
        files, scenes = save_scenes(tmp_path / name, name)
        parts.append(ImageFiles(tmp_path / name, files, scenes.targets, class_names=scenes.class_names))
    benchmark = multilabel_benchmark(*parts, n_experiences=2, validation_size=0.3, **paper_transforms(32))
    settings = make_settings("own", method="finetuning", backbone="small", validation_size=0.3)
    results = make_run(settings, tmp_path / "out", benchmark=benchmark).run()
    write_report([results], tmp_path / "report")
    assert results.settings["dataset_root"] == str(tmp_path / "train")
    assert (tmp_path / "report" / "OwnBenchmark-pictures-finetuning.png").is_file()


def test_own_photos_run_from_a_csv_to_a_prediction(tmp_path):
    files, scenes = save_scenes(tmp_path / "photos")
    labels = {f: [scenes.class_names[c] for c in own.nonzero()] for f, (_, own) in zip(files, scenes)}
    rows = [f"{file},{';'.join(names)}" for file, names in labels.items()]
    (tmp_path / "labels.csv").write_text("\n".join(["file,labels", *rows]))
    options = {"dataset_root": str(tmp_path / "photos"), "labels": str(tmp_path / "labels.csv")}
    settings = make_settings("photos", method="streaming_ridge", backbone="small", image_size=32, **options)
    lines = []
    run = make_run(settings, tmp_path / "out", log=lines.append)
    results = run.run()
    assert "names of classes, separated by ';'; 40 images, 4 classes" in lines[0]
    assert (results.benchmark, results.class_names) == ("SplitPhotos", ["car", "cat", "dog", "person"])
    assert (run.image_benchmark.protocol.image_size, run.image_benchmark.protocol.flip) == (32, True)
    step = find_normalisation(run.image_benchmark.plan.eval_transform)
    assert (tuple(step.mean), tuple(step.std)) == (run.backbone.mean, run.backbone.std)
    for picture in results.pictures:
        assert set(picture["labels"]) == set(labels[picture["image"]])
        photo = scenes[files.index(picture["image"])][0]
        assert open_picture(results, picture).tobytes() == photo.tobytes()
    assert len(draw_pictures(results).axes) == len(results.pictures) * (len(results.class_ap) + 1)
    (found,) = load_model(run.folder).predict(tmp_path / "photos" / "3.png")
    assert list(found.probabilities) == results.class_names


@pytest.mark.parametrize(
    ("method", "given", "n_epochs"),
    [("finetuning", None, 25), ("streaming_ridge", None, 1), ("l3a", None, 1), ("finetuning", 1, 1)],
)
def test_few_photos_are_passed_over_more_often_but_once_in_closed_form(tmp_path, method, given, n_epochs):
    settings = make_settings("own", method=method, backbone="small", train_epochs=given, random_features=64)
    assert make_run(settings, tmp_path, benchmark=own_benchmark()).n_epochs == n_epochs
