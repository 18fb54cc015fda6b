"""Features that are computed once, against the backbone itself, and their files."""

import os
import threading

import pytest
import torch
from filelock import FileLock
from PIL import Image
from torch.utils.data import TensorDataset
from torchvision.transforms import v2

from avalanche_agcn.benchmarks import SplitScenes, multilabel_benchmark
from avalanche_agcn.benchmarks.image_files import ImageFiles
from avalanche_agcn.experiments import features as module
from avalanche_agcn.experiments.features import default_cache, feature_benchmark
from avalanche_agcn.models import create_backbone

TO_TENSOR = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


class CountingBackbone(torch.nn.Module):
    """Mean colours; counts the images it has seen."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.seen = 0

    def forward(self, x):
        self.seen += len(x)
        return x.mean((2, 3)) * self.scale


def scenes(**settings):
    return SplitScenes(n_classes=6, n_experiences=2, n_train=60, n_test=30, image_size=16, **settings)


def photos(folder, n=12):
    """A benchmark of files."""
    generator = torch.Generator().manual_seed(0)
    for k in range(n):
        pixels = torch.randint(0, 256, (8, 8, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(pixels.numpy()).save(folder / f"{k}.png")
    targets = torch.eye(3).repeat(n // 3, 1)
    source = ImageFiles(folder, [f"{k}.png" for k in range(n)], targets)
    return multilabel_benchmark(source, source, n_experiences=3, eval_transform=TO_TENSOR)


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(module, "IMAGES_PER_FILE", 16)


def test_features_are_those_of_the_backbone_with_the_same_labels(tmp_path):
    benchmark = scenes(validation_size=0.2)
    backbone = create_backbone("small").train()
    features = feature_benchmark(benchmark, backbone, tmp_path, batch_size=7)
    assert backbone.training
    backbone.eval()
    for name, stream in benchmark.streams.items():
        for images, made in zip(stream, features.streams[name], strict=True):
            assert torch.equal(made.dataset.targets[:].nan_to_num(2), images.dataset.targets[:].nan_to_num(2))
            assert made.classes_seen_so_far == images.classes_seen_so_far
            with torch.no_grad():
                expected = backbone(torch.stack([x for x, *_ in images.dataset.eval()]))
            torch.testing.assert_close(torch.stack([x for x, *_ in made.dataset]), expected)
    complete = features.complete_train_dataset
    assert torch.equal(complete.targets[:], benchmark.complete_train_dataset.targets[:])


def test_each_image_goes_through_the_backbone_once_even_if_it_returns(tmp_path):
    backbone = CountingBackbone()
    features = feature_benchmark(scenes(repeat_images=True), backbone, tmp_path)
    assert sum(len(experience.dataset) for experience in features.train_stream) > 60
    assert backbone.seen == 60 + 30


def test_nothing_is_computed_twice(tmp_path):
    first, second = CountingBackbone(), CountingBackbone()
    made = feature_benchmark(scenes(), first, tmp_path)
    again = feature_benchmark(scenes(), second, tmp_path)
    assert second.seen == 0
    for one, other in zip(made.train_stream, again.train_stream, strict=True):
        assert torch.equal(one.dataset[0][0], other.dataset[0][0])


def test_what_is_drawn_afterwards_does_not_depend_on_the_cache(tmp_path):
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        feature_benchmark(scenes(), CountingBackbone(), tmp_path)
        drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


def test_other_weights_networks_transforms_and_images_are_not_taken_for_the_same(tmp_path):
    feature_benchmark(scenes(), CountingBackbone(), tmp_path)

    def computed(benchmark, backbone):
        feature_benchmark(benchmark, backbone, tmp_path)
        return backbone.seen

    other_weights = CountingBackbone()
    other_weights.scale.data[1] += 1e-6
    assert computed(scenes(), other_weights) == 90
    other_transform = v2.Compose([TO_TENSOR, v2.Normalize((0.5,) * 3, (0.5,) * 3)])
    assert computed(scenes(eval_transform=other_transform), CountingBackbone()) == 90
    assert computed(scenes(seed=1), CountingBackbone()) == 90
    assert computed(scenes(), CountingBackbone()) == 0


def test_transforms_that_look_alike_are_told_apart_by_what_they_do(tmp_path):
    seen = []
    for factor in (2.0, 3.0, 2.0):
        transform = v2.Compose([TO_TENSOR, v2.Lambda(lambda image, factor=factor: image * factor)])
        backbone = CountingBackbone()
        feature_benchmark(scenes(eval_transform=transform), backbone, tmp_path)
        seen.append(backbone.seen)
    assert seen == [90, 90, 0]


def test_a_source_of_the_users_own_may_have_a_path(tmp_path):
    source = TensorDataset(torch.rand(6, 3, 8, 8))
    source.targets, source.path = torch.eye(2).repeat(3, 1), "somewhere"
    backbone = CountingBackbone()
    feature_benchmark(multilabel_benchmark(source, source, n_experiences=2), backbone, tmp_path)
    assert backbone.seen == 6


def test_poolings_of_the_same_layers_are_told_apart():
    assert repr(create_backbone("small", pool="avg")) != repr(create_backbone("small", pool="max"))


def test_a_changed_file_is_noticed(tmp_path):
    images, cache = tmp_path / "images", tmp_path / "cache"
    images.mkdir()
    backbone = CountingBackbone()
    feature_benchmark(photos(images), backbone, cache)
    assert backbone.seen == 12
    benchmark = photos(images)
    os.utime(images / "3.png", ns=(1, 1))
    feature_benchmark(benchmark, backbone, cache)
    assert backbone.seen == 24


def test_a_damaged_file_is_named_and_made_anew_alone(tmp_path):
    feature_benchmark(scenes(), CountingBackbone(), tmp_path)
    damaged = sorted(tmp_path.glob("*.bin"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-5])
    backbone, messages = CountingBackbone(), []
    feature_benchmark(scenes(), backbone, tmp_path, log=messages.append)
    assert 0 < backbone.seen <= 16
    assert any(damaged.name in message and "damaged" in message for message in messages)


def test_features_of_other_images_under_the_right_name_are_not_used(tmp_path):
    feature_benchmark(scenes(), CountingBackbone(), tmp_path)
    wrong = sorted(tmp_path.glob("*.bin"))[0]
    module.save_state(wrong, {"features": torch.zeros(2, 3)})
    backbone, messages = CountingBackbone(), []
    feature_benchmark(scenes(), backbone, tmp_path, log=messages.append)
    assert 0 < backbone.seen <= 16
    assert any(wrong.name in message for message in messages)


def test_what_was_done_before_a_failure_is_kept(tmp_path):
    class Failing(CountingBackbone):
        most = 32

        def forward(self, x):
            if self.seen >= self.most:
                raise MemoryError("no more")
            return super().forward(x)

    with pytest.raises(MemoryError):
        feature_benchmark(scenes(), Failing(), tmp_path, batch_size=16)
    backbone = Failing()
    backbone.most = 1000
    feature_benchmark(scenes(), backbone, tmp_path, batch_size=16)
    assert backbone.seen == 90 - 32


def test_a_process_waits_for_the_one_that_computes_and_reads_its_file(tmp_path):
    feature_benchmark(scenes(), CountingBackbone(), tmp_path)
    path = sorted(tmp_path.glob("*.bin"))[0]
    content = path.read_bytes()
    path.unlink()
    backbone, done = CountingBackbone(), threading.Event()

    def compute():
        feature_benchmark(scenes(), backbone, tmp_path, log=lambda message: None)
        done.set()

    with FileLock(path.with_suffix(".lock")):  # another process computes the features of this file
        thread = threading.Thread(target=compute)
        thread.start()
        assert not done.wait(1)
        path.write_bytes(content)
    thread.join(60)
    assert done.is_set()
    assert backbone.seen == 0


def test_a_transform_that_does_not_say_what_it_does_is_not_kept(tmp_path):
    source = TensorDataset(torch.rand(6, 3, 8, 8))
    source.targets = torch.eye(2).repeat(3, 1)
    benchmark = multilabel_benchmark(source, source, n_experiences=2, eval_transform=lambda image: image * 2)
    messages = []
    feature_benchmark(benchmark, CountingBackbone(), tmp_path, log=messages.append)
    assert list(tmp_path.iterdir()) == []
    assert any("not kept" in message for message in messages)


def test_the_cache_is_among_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "avalanche_agcn"
