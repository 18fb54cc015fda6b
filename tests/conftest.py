"""Fixtures and settings that several test files share: data, streams of tiny images, strategies."""

import gc
import importlib
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin
from hypothesis import settings
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.models import AGCNModel, Backbone, MultiLabelClassifier
from avalanche_agcn.training import FeatureStatistics, FineTuning, PartialBCEWithLogitsLoss, storage_policy

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"

settings.register_profile("package", deadline=None)
settings.load_profile("package")
torch.set_num_threads(1)  # small tensors only; and test processes share the cores


def pytest_collection_finish(session):
    """Exempt imported modules from garbage collection, which makes forked processes copy their memory."""
    gc.freeze()


def pytest_sessionfinish(session):
    gc.unfreeze()


@pytest.fixture
def files_of():
    """Names of the files behind a dataset, without opening them."""

    def names(dataset):
        images = dataset._flat_data
        while hasattr(images, "_datasets"):
            images = images._datasets[0]
        return [images.source.files[position].decode() for position in images.positions.tolist()]

    return names


@pytest.fixture
def shared_data():
    """Folder of real photos and published lists that may lie beside the project, never in it."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real data beside the project is absent")
    return SHARED_DATA


@pytest.fixture
def boxes_inside():
    """A function that returns the boxes of a plot's texts, none of which is cut off."""

    def boxes_inside(plot, artists):
        plot.draw_without_rendering()
        width, height = plot.canvas.get_width_height()
        boxes = [artist.get_window_extent() for artist in artists if artist.get_text()]
        for box in boxes:
            assert min(box.x0, box.y0) >= -1
            assert box.x1 <= width + 1
            assert box.y1 <= height + 1
        return boxes

    return boxes_inside


FORKED_SECONDS = 900
"""After which a forked process is ended by SIGALRM, so that no test waits for ever."""


class Forked:
    """A function in a process and a session of its own; ``output`` is the stream of what it prints.

    The process is forked, so all modules are loaded: a new interpreter would import Avalanche for seconds.
    """

    def __init__(self, function, *args):
        reader, writer = os.pipe()
        context = multiprocessing.get_context("fork")
        process = context.Process(target=self._run, args=(writer, function, *args))
        process.start()
        os.close(writer)
        self.process = process
        self.pid = process.pid
        self.join = process.join
        self.kill = process.kill
        self.output = os.fdopen(reader, encoding="utf-8")

    @staticmethod
    def _run(writer, function, *args):
        os.setsid()
        signal.alarm(FORKED_SECONDS)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored behind nohup
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        sys.exit(function(*args))

    def wait_for(self, line):
        """Read the output up to a line that ends like this."""
        for printed in self.output:
            if printed.rstrip().endswith(line):
                return
        raise AssertionError(f"the process ended without the line {line!r}")

    def wait(self):
        """The rest of the output and the exit code, after all processes with this output have ended."""
        printed = self.output.read()
        self.join()
        return printed, self.process.exitcode


@pytest.fixture(scope="module")
def fork():
    """A function that calls another in a `Forked` process; those that still run at the end are killed."""
    started = []

    def start(function, *args):
        started.append(Forked(function, *args))
        return started[-1]

    yield start
    for forked in started:
        forked.kill()
        forked.join()
        forked.output.close()


@pytest.fixture(scope="session")
def studies():
    """The modules of the studies on photos, by name."""
    names = (
        "declare",
        "trials",
        "running",
        "rows",
        "pages",
        "study",
        "coco18.declaration",
        "coco18.page",
        "split_coco.page",
        "compact_sums",
        "thresholds",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "runs" / "studies")
        yield SimpleNamespace(**{name.replace(".", "_"): importlib.import_module(name) for name in names})


N_CLASSES = 6


class Patterns(Dataset):
    """Each class adds a pattern of its own to noise; classes c and c + 3 often come together."""

    def __init__(self, n_images, seed):
        generator = torch.Generator().manual_seed(seed)
        targets = (torch.rand(n_images, N_CLASSES, generator=generator) < 0.3).float()
        together = torch.rand(n_images, N_CLASSES, generator=generator) < 0.5
        targets = torch.maximum(targets, targets.roll(3, dims=1) * together)
        targets[torch.arange(n_images), torch.arange(n_images) % N_CLASSES] = 1
        patterns = torch.randn(N_CLASSES, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        noise = torch.randn(n_images, 3, 8, 8, generator=generator)
        self.images = torch.einsum("nc,cijk->nijk", targets, patterns) + 0.5 * noise
        self.targets = targets.long()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.targets[index]


@pytest.fixture(scope="session")
def benchmark():
    """Three experiences of two classes."""
    return multilabel_benchmark(Patterns(90, 1), Patterns(30, 2), n_experiences=3)


@pytest.fixture(scope="session")
def zeros():
    """The same with images repeated, and targets of 0, not NaN, outside of an experience's own columns."""
    settings = {"repeat_images": True, "unlabelled_as_negative": True}
    return multilabel_benchmark(Patterns(90, 1), Patterns(30, 2), n_experiences=3, **settings)


@pytest.fixture(params=["benchmark", "zeros"])
def stream(request):
    """The train stream of either benchmark."""
    return request.getfixturevalue(request.param).train_stream


@pytest.fixture(scope="session")
def rows_of():
    """A function that returns all images and all targets of an experience."""

    def rows(experience):
        images, targets, _ = zip(*experience.dataset)
        return torch.stack(images), torch.stack(targets)

    return rows


@pytest.fixture(scope="session")
def sums_of(rows_of):
    """A function that sums up the features of each experience, with the labels of its own two columns."""

    def sums(stream, features=lambda images: images):
        statistics = FeatureStatistics()
        for experience in stream:
            images, targets = rows_of(experience)
            statistics.begin(2)
            statistics.update(features(images), targets[:, experience.classes_in_this_experience])
        return statistics

    return sums


@pytest.fixture
def make_model():
    """A function that makes the same model each time."""

    def make(seed=0, **backbone_settings):
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3))
        backbone = Backbone(layers, num_features=16, pool="avg", **backbone_settings)
        return AGCNModel(backbone, torch.randn(N_CLASSES, 5), hidden_features=12)

    return make


@pytest.fixture
def make_strategy():
    """A function that makes a strategy with some plugins: the same weights and random numbers each time."""

    def make(*plugins, kind=FineTuning, model=None, optimizer=None, lr=0.1, **settings):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU())
        if model is None:
            model = MultiLabelClassifier(Backbone(layers, num_features=8, pool="avg"), N_CLASSES)
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr)
        settings = {"criterion": PartialBCEWithLogitsLoss(), "train_mb_size": 8} | settings
        settings = {"evaluator": EvaluationPlugin(), "plugins": list(plugins)} | settings
        torch.manual_seed(0)
        return kind(model=model, optimizer=optimizer, **settings)

    return make


@pytest.fixture
def train(benchmark, make_strategy):
    """A function that makes a strategy, trains it on the stream or its first experiences, and returns it."""

    def run(*plugins, stream=None, n=3, loader=None, **settings):
        strategy = make_strategy(*plugins, **settings)
        for experience in benchmark.train_stream[:n] if stream is None else stream:
            strategy.train(experience, eval_streams=[], **loader or {})
        return strategy

    return run


@pytest.fixture
def watch():
    """A plugin that calls a function of the strategy in each named hook; ``seen[hook]`` has the results."""

    class Watch(SupervisedPlugin):
        def __init__(self, **functions):
            super().__init__()
            self.seen = {hook: [] for hook in functions}
            for hook, function in functions.items():
                setattr(self, hook, self._make_hook(self.seen[hook], function))

        def _make_hook(self, seen, function):
            return lambda strategy, **kwargs: seen.append(function(strategy))

    return Watch


@pytest.fixture(
    scope="session", params=["ReservoirBuffer", "ExperienceReservoirBuffer", "PRSBuffer", "OCDMBuffer"]
)
def buffer_kind(request):
    """Each kind of memory."""
    return getattr(storage_policy, request.param)


@pytest.fixture
def same_weights():
    """Whether two strategies have exactly the same weights."""

    def compare(one, other):
        states = [strategy.model.state_dict() for strategy in (one, other)]
        return all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())

    return compare


@pytest.fixture(scope="session")
def feature_stream():
    """A function that draws, per experience, features that depend on the labels, and 0/1 labels."""

    def draw(seed, sizes=(2, 3, 1), n_images=(40, 30, 50), width=6):
        generator = np.random.default_rng(seed)
        mixing, stream = generator.normal(size=(width, width)), []
        for size, n in zip(sizes, n_images):
            targets = (generator.random((n, size)) < 0.4).astype(float)
            signal = targets @ generator.normal(size=(size, width))
            features = generator.normal(size=(n, width)) @ mixing + signal + 1.5
            stream.append((torch.from_numpy(features), torch.from_numpy(targets)))
        return stream

    return draw


@pytest.fixture(scope="session")
def feed():
    """A function that adds a stream to feature statistics."""

    def feed(stream, batch_size=7):
        statistics = FeatureStatistics()
        for features, targets in stream:
            statistics.begin(targets.shape[1])
            for rows in torch.arange(len(features)).split(batch_size):
                statistics.update(features[rows], targets[rows])
        return statistics

    return feed


@pytest.fixture(scope="session")
def dataset_of():
    """One experience of labels."""

    def make(labels):
        data = TensorDataset(torch.zeros(len(labels), 1))
        data.targets = labels.int()
        return multilabel_benchmark(data, data, n_experiences=1).train_stream[0].dataset

    return make


@pytest.fixture(scope="session")
def fill(dataset_of):
    """Let streams of labels, one experience each, flow into a memory."""

    def run(buffer, *streams, batch_size=8):
        for experience, labels in enumerate(streams):
            buffer.open(experience, dataset_of(labels))
            for batch in torch.arange(len(labels)).split(batch_size):
                buffer.observe(experience, batch)
        return buffer

    return run


@pytest.fixture(scope="session")
def long_tailed():
    """Labels whose classes become ever rarer, one to three an image."""

    def draw(n, n_classes, seed, decay=0.7):
        generator = torch.Generator().manual_seed(seed)
        weights = (decay ** torch.arange(n_classes)).expand(n, n_classes)
        k = min(3, n_classes)
        chosen = torch.multinomial(weights, k, generator=generator)  # [n, k], most likely ones first
        n_labels = torch.randint(1, k + 1, (n, 1), generator=generator)
        labels = torch.zeros(n, n_classes, dtype=torch.float64)
        labels.scatter_(1, chosen, (torch.arange(k) < n_labels).double())
        labels[torch.arange(n_classes), torch.arange(n_classes)] = 1  # every class at least once
        return labels

    return draw
