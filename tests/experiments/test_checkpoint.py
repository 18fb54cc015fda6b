import csv
import functools
import itertools
import pickle
import random

import numpy as np
import pytest
import torch
from avalanche.benchmarks import split_online_stream
from avalanche.core import SupervisedPlugin
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.evaluation import MultiLabelCSVLogger, multilabel_evaluator
from avalanche_agcn.experiments import build, checkpoint
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings
from avalanche_agcn.models import Precomputed
from avalanche_agcn.training.plugins import DriftCompensationPlugin


def smoke(**changes):
    """Two experiences of three batches, the last one smaller; a save after each batch."""
    return make_settings("scenes", SMOKE, **{"limit": 22, "checkpoint_minutes": 0.0, **changes})


class Steps(SupervisedPlugin):
    """Counts steps, before they are saved."""

    n = 0

    def after_training_iteration(self, strategy, **kwargs):
        self.n += 1


class Noise(SupervisedPlugin):
    """Draws random numbers when an experience starts and in each step, as a growing network or dropout do."""

    def before_training_exp(self, strategy, **kwargs):
        torch.rand(())

    def before_backward(self, strategy, **kwargs):
        strategy.loss = strategy.loss * torch.rand(())


def make_run(settings, out, **options):
    run = Run(settings, out, log=lambda text: None, **options)
    run.steps = Steps()
    run.strategy.plugins[:0] = [Noise(), run.steps]
    return run


def stop(run, n_saves):
    """Stop a run after a number of saves; return the number of its steps."""
    save, saves = checkpoint.save_state, itertools.count(1)

    def save_and_stop(path, state):
        save(path, state)
        if next(saves) == n_saves:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save_state", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            run.run()
    return run.steps.n


def finish(run, *, n_before=0):
    """Outcome of a run, with weights and memories to the last bit, and the number of all its steps."""
    results, strategy = run.run(), run.strategy
    n_steps = n_before + run.steps.n
    weights = {name: tensor.numpy().tobytes() for name, tensor in strategy.model.state_dict().items()}
    memories = [p.storage_policy.keys.tolist() for p in strategy.plugins if hasattr(p, "storage_policy")]
    return n_steps, results.nested, results.acm, results.pictures, weights, memories


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A folder for features of frozen networks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Outcome of an uninterrupted run without workers, computed once."""
    run = functools.cache(lambda settings: finish(make_run(settings, tmp_path_factory.mktemp("whole"))))
    return lambda **changes: run(smoke(**changes))


@pytest.mark.parametrize(
    ("n_saves", "changes"),  # 1 to 3: in the first experience; 4: after training; 5: after evaluation
    [
        (1, {"method": "finetuning"}),
        (2, {"method": "streaming_ridge"}),
        (2, {"method": "multitask"}),
        (4, {"method": "l3a"}),
        (5, {"method": "ewc"}),
        (6, {"method": "agcn", "preset": "statistics"}),
        *((7, {"method": name}) for name in METHODS if not name.startswith("multitask")),  # in the second
        (7, {"method": "streaming_ridge", "held_images": 0}),
        (7, {"method": "lwf", "negatives": ("statistics",)}),
        (7, {"method": "finetuning", "pseudo_labels": True, "loss": "asl", "protocol": "B0-C2"}),
        (9, {"method": "agcn", "freeze_backbone": True}),
        (10, {"method": "agcn", "train_epochs": 2, "storage_policy": "prs", "negatives": ("memory",)}),
        (3, {"storage_policy": "ocdm", "train_epochs": 2}),  # after an epoch's last step
        (13, {"storage_policy": "ocdm", "train_epochs": 2}),  # in the second epoch of the second experience
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else str(value),
)
def test_a_killed_run_resumes_with_other_workers_to_the_same_end(tmp_path, changes, n_saves, whole):
    # Stopped with one or two workers, resumed with one fewer.
    n_steps = stop(make_run(smoke(**changes, num_workers=n_saves % 2 + 1), tmp_path), n_saves)
    resumed = make_run(smoke(**changes, num_workers=n_saves % 2), tmp_path, resume=True)
    assert finish(resumed, n_before=n_steps) == whole(**changes)


TRAINED_WITH_STATISTICS = [
    {"method": "streaming_ridge"},
    {"method": "streaming_ridge", "held_images": 0},
    {"method": "agcn", "preset": "statistics"},
    {"method": "finetuning", "negatives": ("statistics",), "train_epochs": 2},
    {"method": "lwf", "negatives": ("statistics",)},
]


@pytest.mark.slow
@pytest.mark.parametrize("k", range(30))
def test_drift_compensation_stopped_at_a_random_moment_resumes_to_the_same_end(tmp_path, k, whole):
    draw = random.Random(k)
    changes = TRAINED_WITH_STATISTICS[k % len(TRAINED_WITH_STATISTICS)]
    n_steps, *_ = expected = whole(**changes)
    n_saves = draw.randint(1, n_steps + 2)  # after each step and experience, but not after the last one
    stopped = make_run(smoke(**changes, num_workers=draw.randint(0, 2)), tmp_path)
    assert any(isinstance(plugin, DriftCompensationPlugin) for plugin in stopped.strategy.plugins)
    n_before = stop(stopped, n_saves)
    resumed = make_run(smoke(**changes, num_workers=draw.randint(0, 2)), tmp_path, resume=True)
    assert finish(resumed, n_before=n_before) == expected


@pytest.mark.parametrize("version", ["this", "earlier"])
def test_the_clock_of_a_resumed_run_counts_each_step_once(tmp_path, version):
    settings = smoke(method="finetuning")
    stop(make_run(settings, tmp_path), 7)  # in the second experience
    if version == "earlier":
        path = tmp_path / "finetuning-seed0" / "state.bin"
        state = checkpoint.load_state(path)
        del state["position"]["within"]["iterations"]
        checkpoint.save_state(path, state)
    resumed = make_run(settings, tmp_path, resume=True)
    resumed.run()
    assert resumed.strategy.clock.train_iterations == 6


def test_a_run_that_is_stopped_twice_in_an_epoch_resumes_to_the_same_end(tmp_path, whole):
    settings = smoke(method="prs", num_workers=2)
    n_steps = [stop(make_run(settings, tmp_path, resume=True), n_saves) for n_saves in (6, 1)]
    assert n_steps == [4, 1]
    assert finish(make_run(settings, tmp_path, resume=True), n_before=5) == whole(method="prs")


def test_logs_of_a_resumed_run_continue_with_the_next_epoch(tmp_path):
    settings, logs = smoke(method="finetuning", train_epochs=3), tmp_path / "logs"
    run = make_run(settings, tmp_path, loggers=[MultiLabelCSVLogger(logs)])
    stop(run, 5)  # in the second epoch
    make_run(settings, tmp_path, loggers=[MultiLabelCSVLogger(logs, append=True)], resume=True).run()
    rows = csv.DictReader((logs / "training_results.csv").open())
    assert [row["training_exp"] + row["epoch"] for row in rows] == ["00", "01", "02", "10", "11", "12"]


@pytest.mark.parametrize("minutes", [0, 60])  # between saves within an experience
@pytest.mark.parametrize("n_writes", [2, 3, 4, 6, 8])  # of three epochs and an evaluation, twice
def test_logs_have_each_row_once_after_a_run_was_killed_and_resumed(tmp_path, n_writes, minutes):
    """Rows are written at once, also those that the saved state does not have yet."""
    settings = smoke(method="finetuning", train_epochs=3, checkpoint_minutes=minutes)
    write, writes = MultiLabelCSVLogger._write, itertools.count(1)

    def write_and_stop(self, phase, rows):
        write(self, phase, rows)
        if next(writes) == n_writes:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiLabelCSVLogger, "_write", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            make_run(settings, tmp_path, loggers=[MultiLabelCSVLogger(tmp_path)]).run()
    make_run(settings, tmp_path, loggers=[MultiLabelCSVLogger(tmp_path, append=True)], resume=True).run()
    rows = csv.DictReader((tmp_path / "training_results.csv").open())
    assert [row["training_exp"] + row["epoch"] for row in rows] == ["00", "01", "02", "10", "11", "12"]
    rows = csv.DictReader((tmp_path / "eval_results.csv").open())
    assert [row["training_exp"] + row["eval_exp"] for row in rows] == ["00", "0", "10", "11", "1"]


def test_a_file_is_written_for_all_readers_and_a_failure_leaves_the_old_one_and_nothing_else(tmp_path):
    checkpoint.write_json(tmp_path / "new" / "a.json", {"ä": [1, None]})
    assert (tmp_path / "new" / "a.json").read_text() == '{\n "ä": [\n  1,\n  null\n ]\n}\n'
    (tmp_path / "other").touch()
    assert (tmp_path / "new" / "a.json").stat().st_mode == (tmp_path / "other").stat().st_mode
    with pytest.raises(ValueError, match="Out of range float"):
        checkpoint.write_json(tmp_path / "b.json", float("nan"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}

    def write(file):
        file.write(b"half of the n")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        checkpoint.write_atomically(tmp_path / "new" / "a.json", write)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


@pytest.mark.parametrize("keep", [0, 10, len(checkpoint.MAGIC), len(checkpoint.MAGIC) + 20, 500, -1])
def test_a_truncated_or_changed_file_is_named(tmp_path, keep):
    path = tmp_path / "state"
    checkpoint.save_state(path, {"weights": torch.arange(100.0)})
    content = bytearray(path.read_bytes())
    path.write_bytes(content[:keep])
    with pytest.raises(checkpoint.DamagedState, match=str(path)):
        checkpoint.load_state(path)
    content[-200] ^= 1
    path.write_bytes(content)
    with pytest.raises(checkpoint.DamagedState, match=f"{path} is damaged or was only partly written"):
        checkpoint.load_state(path)


def test_code_in_a_file_is_not_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("code of the file was run",))

    foreign, ours = tmp_path / "foreign", tmp_path / "ours"
    foreign.write_bytes(pickle.dumps(Bomb()))
    checkpoint.save_state(ours, {"bomb": Bomb()})
    for path, reason in ((foreign, "not a saved state of this package"), (ours, "has the right checksum")):
        with pytest.raises(checkpoint.DamagedState, match=reason):
            checkpoint.load_state(path)


def drawn():
    return random.random(), np.random.rand(), torch.rand(3).tolist(), random.gauss(0, 1)  # noqa: NPY002


def test_random_numbers_continue_after_saving_and_loading(tmp_path):
    checkpoint.seed_everything(3)
    drawn()
    checkpoint.save_state(tmp_path / "state", checkpoint.random_state())
    expected = drawn()
    checkpoint.seed_everything(4)
    checkpoint.set_random_state(checkpoint.load_state(tmp_path / "state"))
    assert drawn() == expected
    checkpoint.seed_everything(3)
    drawn()
    assert drawn() == expected


WIDTH = 8


def make_benchmark(n_experiences):
    """The first experiences of one stream, with 20 images and 2 classes each."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, WIDTH, generator=generator)
    labels = torch.rand(60, 2, generator=generator) < 0.5
    labels[:, 0] |= ~labels[:, 1]
    data = TensorDataset(features[: 20 * n_experiences])
    data.targets = torch.block_diag(*labels.int().split(20)[:n_experiences])
    return multilabel_benchmark(data, data, n_experiences=n_experiences)


def make_strategy(name, n_classes, **settings):
    torch.manual_seed(0)
    # Orthogonal word vectors would depend on the number of classes.
    how = {"freeze_backbone": True, "orthogonal_words": False, "seed": 3}
    made = make_settings("scenes", SMOKE, method=name, **how, **settings)
    names = ["person", "bicycle", "car", "dog", "cat", "boat"][:n_classes]
    return build.make_strategy(made, Precomputed(WIDTH), names, evaluator=multilabel_evaluator(loggers=[]))


def learn(strategy, n_experiences, path=None):
    """Train and evaluate a strategy, or continue with a saved one after two experiences."""
    benchmark = make_benchmark(n_experiences)
    if path is not None:
        checkpoint.load_strategy(path, strategy, benchmark.train_stream)
    for t in range(0 if path is None else 2, n_experiences):
        strategy.train(benchmark.train_stream[t], eval_streams=[])
        strategy.eval(benchmark.test_stream[: t + 1])
    return strategy


@torch.no_grad()
def logits(strategy):
    x = torch.stack([row[0] for experience in make_benchmark(3).test_stream for row in experience.dataset])
    return strategy.model.eval()(x)


EXACT = [("streaming_ridge", {}), ("l3a", {}), ("csc", {}), ("agcn", {"preset": "statistics"})]
STREAM = [(name, {}) for name in METHODS if not name.startswith("multitask")]


@pytest.mark.parametrize(("name", "settings"), [*STREAM, EXACT[-1]])
def test_every_method_learns_further_classes_some_as_in_an_uninterrupted_run(tmp_path, name, settings):
    path = tmp_path / "strategy.bin"
    checkpoint.save_strategy(path, learn(make_strategy(name, 4, **settings), 2))
    continued = logits(learn(make_strategy(name, 6, **settings), 3, path))
    assert continued.shape == (60, 6)
    assert continued.isfinite().all()
    if (name, settings) in EXACT:
        whole = logits(learn(make_strategy(name, 6, **settings), 3))
        torch.testing.assert_close(continued, whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pieces", [True, False])
@pytest.mark.parametrize("n_classes", [4, 6])
def test_an_optimizer_that_is_not_reset_continues(tmp_path, pieces, n_classes):
    def make(n_classes):
        strategy = make_strategy("finetuning", n_classes)
        strategy.reset_optimizer_state = pieces
        return strategy

    stream = list(make_benchmark(2).train_stream)
    if pieces:
        stream = list(split_online_stream(stream, experience_size=12, seed=0))
    path, (whole, first, resumed) = tmp_path / "strategy.bin", map(make, (n_classes, 4, n_classes))
    whole.model.load_state_dict(first.model.state_dict())
    first.train(stream[0], eval_streams=[])
    checkpoint.save_strategy(path, first)
    checkpoint.load_strategy(path, resumed, stream)
    for experience in stream[1:]:
        resumed.train(experience, eval_streams=[])
    for experience in stream:
        whole.train(experience, eval_streams=[])
    found, expected = (strategy.model.classifier.weight[:4] for strategy in (resumed, whole))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


def test_another_strategy_is_rejected(tmp_path):
    checkpoint.save_strategy(tmp_path / "strategy.bin", learn(make_strategy("finetuning", 4), 2))
    with pytest.raises(ValueError, match="plugins"):
        learn(make_strategy("finetuning", 6, negatives=["statistics"]), 3, tmp_path / "strategy.bin")


def test_a_link_to_a_file_is_kept_when_the_file_is_replaced(tmp_path):
    (tmp_path / "target.json").write_text("old")
    (tmp_path / "link.json").symlink_to("target.json")
    checkpoint.write_text(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "target.json").read_text() == "new"
    with pytest.raises(OSError, match=r"null is not a regular file and cannot be replaced: give the name"):
        checkpoint.write_text("/dev/null", "new")
