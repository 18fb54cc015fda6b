"""Cached features, compared with the backbone's own, and their files."""

import os
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import torch
from filelock import FileLock
from PIL import Image
from torch.utils.data import TensorDataset
from torchvision.transforms import v2

from avalanche_agcn.benchmarks import SplitScenes, multilabel_benchmark
from avalanche_agcn.benchmarks.image_files import ImageFiles, paper_transforms
from avalanche_agcn.experiments import features as module
from avalanche_agcn.experiments.features import default_cache, feature_benchmark
from avalanche_agcn.experiments.folder import file_digest
from avalanche_agcn.models import create_backbone

TO_TENSOR = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


class MeanColours(torch.nn.Module):
    """Mean colours, with parts that are not in its state dictionary."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.zeros(3), persistent=False)
        self.factor, self.function = 1.0, torch.relu

    def forward(self, x):
        mean = torch.nn.functional.linear(x.mean((2, 3)), self.scale.diag(), self.shift)
        return self.function(self.factor * mean)


@pytest.fixture
def computed(monkeypatch):
    """A function that makes features and returns how many images went through the backbone."""
    counts, compute = [], module._Network._compute

    def counting(network, source, positions, bar):
        counts.append(len(positions))
        return compute(network, source, positions, bar)

    monkeypatch.setattr(module._Network, "_compute", counting)

    def count(benchmark, backbone, cache, log=lambda text: None, **options):
        counts.clear()
        feature_benchmark(benchmark, backbone, cache, log=log, **options)
        return sum(counts)

    return count


def scenes(**settings):
    return SplitScenes(n_classes=6, n_experiences=2, n_train=60, n_test=30, image_size=16, **settings)


def photos(folder, n=12, new=True, transform=TO_TENSOR):
    """A benchmark of files, which are written first if new."""
    generator = torch.Generator().manual_seed(0)
    for k in range(n if new else 0):
        pixels = torch.randint(0, 256, (8, 8, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(pixels.numpy()).save(folder / f"{k}.bmp")
    targets = torch.eye(3).repeat(n // 3, 1)
    source = ImageFiles(folder, [f"{k}.bmp" for k in range(n)], targets)
    return multilabel_benchmark(source, source, n_experiences=3, eval_transform=transform)


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(module, "IMAGES_PER_FILE", 16)


def stack(dataset):
    return torch.stack([x for x, *_ in dataset])


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
                torch.testing.assert_close(stack(made.dataset), backbone(stack(images.dataset.eval())))
    complete = features.complete_train_dataset
    assert torch.equal(complete.targets[:], benchmark.complete_train_dataset.targets[:])


def test_nothing_is_computed_twice_and_random_numbers_do_not_depend_on_the_cache(tmp_path, computed):
    repeated, drawn = scenes(repeat_images=True), []
    assert sum(len(experience.dataset) for experience in repeated.train_stream) > 60
    try:
        for n_computed, n_threads in ((60 + 30, 1), (0, 1), (0, 2)):
            torch.manual_seed(0)
            torch.set_num_threads(n_threads)
            assert computed(repeated, MeanColours(), tmp_path) == n_computed
            drawn.append(torch.rand(3))
    finally:
        torch.set_num_threads(1)
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == 1


class Brighter:
    """A transform whose description hides its parameter."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, image):
        return TO_TENSOR(image) * self.factor

    def __repr__(self):
        return "Brighter()"


def test_other_images_transforms_precisions_and_backbones_have_other_features(tmp_path, computed):
    assert computed(scenes(), MeanColours(), tmp_path) == 90
    normalized = v2.Compose([TO_TENSOR, v2.Normalize((0.5,) * 3, (0.5,) * 3)])
    for transform in (normalized, Brighter(2), Brighter(3)):
        assert computed(scenes(eval_transform=transform), MeanColours(), tmp_path) == 90
    assert computed(scenes(eval_transform=Brighter(2)), MeanColours(), tmp_path) == 0
    assert computed(scenes(seed=1), MeanColours(), tmp_path) == 90
    assert repr(create_backbone("small", pool="avg")) != repr(create_backbone("small", pool="max"))
    for expected in (90, 0):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert computed(scenes(), MeanColours(), tmp_path) == expected
    for change in (
        lambda backbone: backbone.scale.data[1].add_(1e-6),
        lambda backbone: setattr(backbone, "factor", 1.001),
        lambda backbone: backbone.shift.add_(1e-3),
        lambda backbone: setattr(backbone, "function", torch.tanh),
        lambda backbone: backbone.register_forward_hook(lambda module, x, y: y + 1e-3),
    ):
        changed = MeanColours()
        change(changed)
        assert computed(scenes(), changed, tmp_path) == 90
    assert computed(scenes(), MeanColours(), tmp_path) == 0


def test_threads_that_share_a_backbone_get_its_features(tmp_path):
    """Dropout reveals whether the mode of the shared backbone was changed."""
    backbone = torch.nn.Sequential(MeanColours(), torch.nn.Dropout(0.5)).train()
    benchmarks = [scenes(seed=seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(feature_benchmark, own, backbone, tmp_path, batch_size=2) for own in benchmarks]
        while not all(features.done() for features in made):
            backbone.train()
    assert backbone[1].training
    backbone.eval()
    for benchmark, features in zip(benchmarks, made, strict=True):
        expected = backbone(stack(benchmark.test_stream[1].dataset.eval())).detach()
        torch.testing.assert_close(stack(features.result().test_stream[1].dataset), expected)


def replace_pixels(path):
    """Write other pixels to a file and keep its size and time."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[-20] ^= 255  # in the last row of the pixels of a bitmap
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)


@pytest.mark.parametrize("settled", [0.0, 1e9])
def test_a_file_is_read_again_if_it_may_have_changed(tmp_path, computed, monkeypatch, settled):
    images, cache, read = tmp_path / "images", tmp_path / "cache", []
    images.mkdir()
    digest = module.file_digest
    monkeypatch.setattr(module, "file_digest", lambda path: read.append(path) or digest(path))
    monkeypatch.setattr(module, "SETTLED_SECONDS", settled)
    assert computed(photos(images), MeanColours(), cache) == len(read) == 12
    os.utime(images / "3.bmp", ns=(1, 1))
    assert computed(photos(images, new=False), MeanColours(), cache) == 0
    if not settled:
        assert len(read) == 13
    replace_pixels(images / "3.bmp")
    assert computed(photos(images, new=False), MeanColours(), cache) == 12
    assert computed(photos(images, new=False), MeanColours(), cache) == 0


@pytest.mark.skipif(os.name != "posix", reason="files have no owner")
def test_files_of_another_user_are_named_and_their_digests_not_used(tmp_path, computed, monkeypatch):
    images, cache = tmp_path / "images", tmp_path / "cache"
    images.mkdir()
    monkeypatch.setattr(module, "SETTLED_SECONDS", -1.0)
    read = []
    monkeypatch.setattr(module, "file_digest", lambda path: read.append(path) or file_digest(path))
    computed(photos(images), MeanColours(), cache)
    messages = []
    assert computed(photos(images, new=False), MeanColours(), cache, log=messages.append) == 0
    assert not any("another user" in message for message in messages)
    n_read = len(read)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(module, "ROOT_USER", -1)  # the tests may run as this user
    assert computed(photos(images, new=False), MeanColours(), cache, log=messages.append) == 0
    assert any("written by another user" in message for message in messages)
    assert len(read) == n_read + 12


@pytest.mark.parametrize(
    "content",
    [
        None,
        {"features": torch.zeros(2, 3)},
        {"features": torch.zeros(16, 3).long()},
        {"features": "a"},
        {},
        [],
    ],
)
def test_only_a_file_that_is_damaged_or_of_other_images_is_named_and_recomputed(tmp_path, computed, content):
    computed(scenes(), MeanColours(), tmp_path)
    wrong = sorted(tmp_path.glob("*.bin"))[0]
    if content is None:
        wrong.write_bytes(wrong.read_bytes()[:-5])
    else:
        module.save_state(wrong, content)
    messages = []
    assert 0 < computed(scenes(), MeanColours(), tmp_path, log=messages.append) <= 16
    assert any(wrong.name in message for message in messages)


def test_features_computed_before_a_failure_are_kept(tmp_path, computed):
    class Failing(MeanColours):
        most, seen = 32, 0

        def forward(self, x):
            self.seen += len(x) if len(x) > 1 else 0  # not the probes
            if self.seen > self.most:
                raise MemoryError("no more")
            return super().forward(x)

    with pytest.raises(MemoryError):
        computed(scenes(), Failing(), tmp_path, batch_size=16)
    backbone = Failing()
    backbone.most = 1000
    assert computed(scenes(), backbone, tmp_path, batch_size=16) == 90 - 32


def test_a_process_waits_for_the_one_that_computes_and_reads_its_file(tmp_path, computed):
    feature_benchmark(scenes(), MeanColours(), tmp_path)
    path = sorted(tmp_path.glob("*.bin"))[0]
    content = path.read_bytes()
    path.unlink()
    with ThreadPoolExecutor(1) as pool:
        with FileLock(path.with_suffix(".lock")):  # another process computes the features of this file
            count = pool.submit(computed, scenes(), MeanColours(), tmp_path)
            assert not wait([count], timeout=1).done
            path.write_bytes(content)
        assert count.result(60) == 0


def test_features_are_not_cached_for_a_transform_without_description(tmp_path, computed, monkeypatch):
    source = TensorDataset(torch.rand(6, 3, 8, 8))
    source.targets, source.path = torch.eye(2).repeat(3, 1), "somewhere"  # as a user's own source may have
    messages = []
    for transform in (lambda image: image * 2, None):
        benchmark = multilabel_benchmark(source, source, n_experiences=2, eval_transform=transform)
        assert computed(benchmark, MeanColours(), tmp_path, log=messages.append) == 6
        assert bool(list(tmp_path.iterdir())) == (transform is None)
    assert sum("not cached" in message for message in messages) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "avalanche_agcn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as of a user without a home directory
    with pytest.raises(ValueError, match="no home directory for the cache of features: set HOME, or give a"):
        default_cache()


def test_a_cache_that_cannot_be_written_is_read_or_named(tmp_path, computed, monkeypatch):
    """Folders in the place of files, which nobody can replace, not even root."""
    monkeypatch.setattr(module, "SETTLED_SECONDS", -1.0)  # digests of files that were just written are kept
    (tmp_path / "photos").mkdir()
    cache = tmp_path / "cache"
    benchmark = photos(tmp_path / "photos")
    assert computed(benchmark, MeanColours(), cache) == 12
    (digests,) = cache.glob("digests-*.json")
    digests.unlink()
    digests.mkdir()
    assert computed(benchmark, MeanColours(), cache) == 0
    (features,) = cache.glob("features-*.bin")
    features.unlink()
    features.with_suffix(".lock").unlink(missing_ok=True)
    features.with_suffix(".lock").mkdir()
    with pytest.raises(
        OSError, match=r"features cannot be written to .*cache \(.*\): choose another folder by"
    ):
        computed(benchmark, MeanColours(), cache)


class Opaque:
    """A user's own transform: it does what another one does, but not in torchvision's words."""

    def __init__(self, transform):
        self.transform = transform

    def __call__(self, image):
        return self.transform(image)

    def __repr__(self):
        return f"Opaque({self.transform!r})"


def test_threads_and_own_transforms_change_no_bit_and_folding_only_the_last_ones(tmp_path):
    backbone = create_backbone("small", pretrained=True)
    transform = paper_transforms(32, mean=backbone.mean, std=backbone.std)["eval_transform"]
    images = photos(tmp_path, n=30, transform=transform)
    expected = backbone.eval()(stack(images.test_stream[0].dataset.eval())).detach()
    made = []
    try:
        for name, benchmark, n_threads in (
            ("one", images, 1),
            ("two", images, 2),
            ("own", photos(tmp_path, n=30, new=False, transform=Opaque(transform)), 1),
        ):
            torch.set_num_threads(n_threads)
            features = feature_benchmark(benchmark, backbone, tmp_path / name, batch_size=4)
            made.append(stack(features.test_stream[0].dataset))
            assert torch.get_num_threads() == n_threads
    finally:
        torch.set_num_threads(1)
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])
    torch.testing.assert_close(made[0], expected, rtol=1e-4, atol=1e-4)


def test_a_photo_that_a_thread_cannot_read_is_named(tmp_path):
    backbone = create_backbone("small", pretrained=True)
    benchmark = photos(tmp_path, transform=paper_transforms(32)["eval_transform"])
    (tmp_path / "7.bmp").write_bytes(b"no image")
    torch.set_num_threads(2)
    try:
        with pytest.raises(OSError, match=r"7\.bmp is not an image"):
            feature_benchmark(benchmark, backbone, tmp_path / "cache", batch_size=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_features_of_another_computation_are_not_used(tmp_path, computed, monkeypatch):
    assert [computed(scenes(), MeanColours(), tmp_path) for _ in range(2)] == [90, 0]
    monkeypatch.setattr(module, "COMPUTATION", "another")
    assert computed(scenes(), MeanColours(), tmp_path) == 90
