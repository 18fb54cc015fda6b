"""Plugin metrics in Avalanche's loops, against the functions on the same images."""

import copy
import math
import pickle
from types import SimpleNamespace

import pytest
import torch
from avalanche.benchmarks import split_online_stream, with_classes_timeline
from avalanche.core import SupervisedPlugin
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.logging import CSVLogger
from avalanche.training.plugins import EarlyStoppingPlugin, EvaluationPlugin
from torch.utils.data import TensorDataset

import avalanche_agcn.evaluation.functional as F
from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.evaluation import (
    f1_metrics,
    find_nested,
    multilabel_evaluator,
    nested_metrics,
    roc_auc_metrics,
)
from avalanche_agcn.evaluation.plots import Plot
from avalanche_agcn.evaluation.plugins import mean_average_precision_metrics, name_classes

TEST, TRAIN = "eval_phase/test_stream", "train_phase/train_stream"
NAMES = ["cat", "dog", "car", "bus", "tree", "sea"]  # of the benchmark
METRICS = ("mAP", "CF1", "OF1")


def evaluator(*metrics):
    return EvaluationPlugin(*metrics, loggers=[])


def nested_evaluator(**flags):
    return evaluator(nested_metrics(**flags))


def history(strategy):
    return find_nested(strategy).history["test"]


def score(model, tensors, n_classes=None):
    """Scores and targets of all images of some experiences."""
    x, y = (torch.cat(parts) for parts in zip(*tensors))
    with torch.no_grad():
        return model(x)[:, :n_classes], y[:, :n_classes]


def alone(model, tensors, t):
    """Rows of mAP, CF1 and OF1 of the nested sets 0..t, each evaluated by itself."""
    rows = []
    for i in range(t + 1):
        case = score(model, tensors[: i + 1], 2 * (i + 1))
        f1 = F.precision_recall_f1(*case, threshold=0.0)
        rows.append((F.mean_average_precision(*case), f1.CF1, f1.OF1))
    return [pytest.approx(row, abs=1e-12) for row in zip(*rows)]


# mAP and F1 of batches, epochs, experiences and streams


def test_stream_and_experience_metrics_equal_the_functions(benchmark, make_strategy, model, stream_tensors):
    wanted = {"stream": True, "experience": True}
    f1 = f1_metrics(**wanted, precision_recall=True) + f1_metrics(**wanted, top_k=2)
    ranking = mean_average_precision_metrics(**wanted) + roc_auc_metrics(**wanted)
    strategy = make_strategy(evaluator=evaluator(ranking, f1))
    strategy.eval(benchmark.test_stream[:1])  # must not affect the next evaluation
    results = strategy.eval(benchmark.test_stream)
    parts = {f"Stream/{TEST}": stream_tensors}
    parts |= {f"Exp/{TEST}/Exp{i:03}": [tensors] for i, tensors in enumerate(stream_tensors)}
    for name, tensors in parts.items():
        case = score(model, tensors)
        assert results[f"mAP_{name}"] == pytest.approx(F.mean_average_precision(*case), abs=1e-12)
        assert results[f"ROC_AUC_{name}"] == pytest.approx(F.mean_roc_auc(*case), abs=1e-12)
        for metric, value in F.precision_recall_f1(*case, threshold=0.0)._asdict().items():
            assert results[f"{metric}_{name}"] == pytest.approx(value, abs=1e-12)
        top = F.precision_recall_f1(*case, threshold=0.0, top_k=2)
        assert results[f"CF1_top2_{name}"] == pytest.approx(top.CF1)


def test_epoch_and_minibatch_metrics_are_of_annotated_cells(benchmark, make_strategy):
    recorder, batches, wanted = SupervisedPlugin(), [], {"minibatch": True, "epoch": True}
    recorder.after_training_iteration = lambda strategy: batches.append((strategy.mb_output, strategy.mb_y))
    metrics = mean_average_precision_metrics(**wanted), f1_metrics(**wanted)
    strategy = make_strategy(evaluator=evaluator(*metrics), plugins=[recorder], train_epochs=2)
    strategy.train(benchmark.train_stream[1])
    values = {name: curve[1] for name, curve in strategy.evaluator.get_all_metrics().items()}
    for case, got, f1 in zip(batches, values[f"mAP_MB/{TRAIN}"], values[f"OF1_MB/{TRAIN}"], strict=True):
        assert got == pytest.approx(F.mean_average_precision(*case), nan_ok=True)
        assert f1 == pytest.approx(F.precision_recall_f1(*case, threshold=0.0).OF1)
    last_epoch = batches[len(batches) // 2 :]
    scores, targets = (torch.cat(parts) for parts in zip(*last_epoch))
    own = slice(2, 4)  # the experience's own two columns
    assert targets[:, :2].isnan().all()
    expected = F.average_precision(scores[:, own], targets[:, own]).mean().item()
    assert values[f"mAP_Epoch/{TRAIN}"][-1] == pytest.approx(expected)


@pytest.mark.parametrize("class_names", [None, list("abcdef")])
def test_per_class_values_have_names(benchmark, make_strategy, model, stream_tensors, class_names):
    wanted = {"stream": True, "per_class": True, "class_names": class_names}
    metrics = mean_average_precision_metrics(**wanted), roc_auc_metrics(**wanted), nested_metrics(**wanted)
    strategy = make_strategy(evaluator=evaluator(*metrics))
    results = strategy.eval(benchmark.test_stream)
    ap = F.average_precision(*score(model, stream_tensors)).tolist()
    expected = dict(zip(class_names or NAMES, ap))
    assert results[f"AP_Stream/{TEST}"] == pytest.approx(expected, nan_ok=True)
    assert results[f"AP_Nested/{TEST}"] == pytest.approx(expected, nan_ok=True)
    areas = F.roc_auc(*score(model, stream_tensors)).tolist()
    expected = dict(zip(class_names or NAMES, areas))
    assert results[f"class_ROC_AUC_Stream/{TEST}"] == pytest.approx(expected, nan_ok=True)
    assert find_nested(strategy).average_precision["test"].tolist() == pytest.approx(ap, nan_ok=True)


@pytest.mark.parametrize("make", [mean_average_precision_metrics, roc_auc_metrics, nested_metrics])
def test_empty_streams_and_iterators_are_rejected_with_the_fix(benchmark, make_strategy, make):
    strategy = make_strategy(evaluator=evaluator(make(stream=True)))
    with pytest.raises(ValueError, match=r"an empty stream; .*test_stream\[: t \+ 1\]"):
        strategy.eval(benchmark.test_stream[:0])
    with pytest.raises(ValueError, match="with an iterator; pass a stream or a list"):
        strategy.eval(iter(benchmark.test_stream))


# Requirements on the strategy


@pytest.mark.parametrize(
    "ours", [mean_average_precision_metrics, roc_auc_metrics, f1_metrics, nested_metrics]
)
def test_accuracy_beside_our_metrics_stops_training_and_evaluation(benchmark, make_strategy, ours):
    strategy = make_strategy(evaluator=evaluator(accuracy_metrics(stream=True), ours(stream=True)))
    for run in (strategy.train, strategy.eval):
        with pytest.raises(ValueError, match="takes the argmax of multi-hot targets"):
            run(benchmark.test_stream[0])


@pytest.mark.parametrize("ours", [mean_average_precision_metrics, f1_metrics, nested_metrics])
def test_a_csv_logger_that_would_write_zeros_is_rejected_with_the_fix(
    benchmark, make_strategy, ours, tmp_path
):
    loggers = [CSVLogger(tmp_path)]
    strategy = make_strategy(evaluator=EvaluationPlugin(ours(stream=True), loggers=loggers))
    for run in (strategy.train, strategy.eval):
        with pytest.raises(ValueError, match=r"would write zeros; use .*\.MultiLabelCSVLogger"):
            run(benchmark.test_stream[0])
    with pytest.raises(ValueError, match="would write zeros"):
        multilabel_evaluator(loggers=loggers)


def test_early_stopping_is_rejected_with_a_fix_that_stops(benchmark, make_strategy, model):
    """With a learning rate of 0, no epoch improves on the first, and training stops after `patience` more."""
    settings = {"train_epochs": 9, "eval_every": 1}
    strategy = make_strategy(plugins=[EarlyStoppingPlugin(2, "test_stream")], **settings)
    with pytest.raises(ValueError, match=r"waits for Top1_Acc_Stream, .* pass metric_name='mAP_Last'"):
        strategy.train(benchmark.train_stream[0])
    plugin = EarlyStoppingPlugin(2, "test_stream", metric_name="mAP_Last")
    strategy = make_strategy(plugins=[plugin], **settings)
    strategy.optimizer.param_groups[0]["lr"] = 0.0
    with pytest.warns(UserWarning, match="is not computed yet"):  # Avalanche's, at the first value
        strategy.train(benchmark.train_stream[0], eval_streams=[benchmark.test_stream[:1]])
    assert strategy.clock.train_exp_epochs < 5


@pytest.mark.filterwarnings("ignore:Metric mAP_Last")
def test_early_stopping_does_not_compare_with_the_score_of_fewer_classes(benchmark, make_strategy, watch):
    plugin = EarlyStoppingPlugin(2, "test_stream", metric_name="mAP_Last")
    best = watch(
        before_training_iteration=lambda strategy: (strategy.clock.train_exp_epochs, plugin.best_val)
    )
    strategy = make_strategy(plugins=[plugin, best], train_epochs=3, eval_every=1)
    for t in range(2):
        best.seen["before_training_iteration"].clear()
        strategy.train(benchmark.train_stream[t], eval_streams=[benchmark.test_stream[: t + 1]])
        for epoch, value in best.seen["before_training_iteration"]:
            assert (value is None) == (epoch == 0)


def test_only_the_metrics_asked_for_are_made_and_read_multi_hot_targets_of_the_scored_classes():
    assert mean_average_precision_metrics() == roc_auc_metrics() == f1_metrics() == nested_metrics() == []
    made = f1_metrics(minibatch=True, experience=True)
    assert [str(metric) for metric in made] == ["MultiLabelF1_MB", "MultiLabelF1_Exp"]
    with pytest.raises(ValueError, match="threshold is NaN"):
        f1_metrics(stream=True, threshold=math.nan)
    strategy = SimpleNamespace(mb_output=torch.randn(4, 2), mb_y=torch.rand(4, 5).round(), is_training=False)
    strategy.experience = SimpleNamespace(origin_stream=SimpleNamespace(name="test"))
    assert torch.equal(made[0].read_batch(strategy)[1], strategy.mb_y[:, :2])
    for wrong in (torch.zeros(4, dtype=torch.int64), torch.zeros(4, 1)):
        strategy.mb_y = wrong
        with pytest.raises(ValueError, match=r"\(4, 2\) .* as many classes, as multilabel_benchmark"):
            made[0].read_batch(strategy)


def test_classes_without_names_are_numbered_and_too_few_names_are_rejected():
    values, strategy = torch.tensor([0.5, 0.25]), SimpleNamespace(experience=None)
    assert name_classes(values, strategy, None) == {"class 0": 0.5, "class 1": 0.25}
    with pytest.raises(ValueError, match="class_names has 1 names, but 2 classes are scored"):
        name_classes(values, strategy, ["cat"])


# Nested matrices


def test_matrices_equal_each_set_evaluated_by_itself(learn, make_strategy, stream_tensors):
    strategy = make_strategy(evaluator=nested_evaluator(nested=True, experience=True, stream=True))
    for t in range(3):
        results = learn(strategy, [t])
        rows = [tuple(history(strategy)[name][t]) for name in METRICS]
        assert rows == alone(strategy.model, stream_tensors, t)
    matrix = history(strategy)["CF1"]
    summary = F.nested_summary(matrix)
    assert summary.forgetting_absolute != 0
    assert [results[f"CF1_Nested/{TEST}/Exp{i:03}"] for i in range(3)] == matrix[-1]
    emitted = ("Last", "NestedMean", "Average", "Forgetting", "RelativeForgetting")
    assert tuple(results[f"CF1_{name}/{TEST}"] for name in emitted) == summary
    lost = [results[f"CF1_Forgetting/{TEST}/Exp{i:03}"] for i in range(2)]
    assert lost == pytest.approx([matrix[0][0] - matrix[2][0], matrix[1][1] - matrix[2][1]])
    assert find_nested(strategy).result()["test"]["CF1"] == summary
    find_nested(strategy).reset()
    assert find_nested(strategy).history == {}


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("timeline", [True, False])
@pytest.mark.parametrize("during", [True, False])
def test_row_is_of_the_experiences_trained_on(
    benchmark, make_strategy, stream_tensors, trained, timeline, during
):
    """More experiences may be evaluated, also during training, and Avalanche's timeline changes nothing."""
    if timeline:  # it takes every label of a test image for a class of its experience
        benchmark = with_classes_timeline(benchmark)
        assert len(benchmark.test_stream[0].classes_seen_so_far) > 2
    settings = {"train_epochs": 2, "eval_every": 1} if during else {}
    strategy = make_strategy(evaluator=nested_evaluator(nested=True), **settings)
    for t, experience in enumerate(benchmark.train_stream):
        stream = benchmark.test_stream if trained else benchmark.test_stream[: t + 1]
        if trained:
            strategy.train(experience, eval_streams=[stream] if during else [])
        if not (trained and during):
            strategy.eval(stream)
        matrix = history(strategy)["mAP"]
        assert [len(row) for row in matrix] == list(range(1, t + 2))
        assert tuple(matrix[t]) == alone(strategy.model, stream_tensors, t)[0]


def test_online_stream_with_the_default_evaluator_fills_the_matrix(benchmark, make_strategy, stream_tensors):
    strategy = make_strategy()
    for part in split_online_stream(benchmark.train_stream, experience_size=16, seed=0):
        strategy.train(part)
        if part.is_last_subexp:
            t = part.origin_experience.current_experience
            strategy.eval(benchmark.test_stream[: t + 1])
            assert tuple(history(strategy)["mAP"][t]) == alone(strategy.model, stream_tensors, t)[0]
    assert [len(row) for row in history(strategy)["mAP"]] == [1, 2, 3]


@pytest.mark.parametrize("first", ["test", "valid"])
def test_only_the_first_of_two_streams_is_scored_and_under_its_own_name(make_strategy, first):
    torch.manual_seed(0)
    images = [TensorDataset(torch.randn(60, 8)) for _ in range(2)]
    for dataset in images:
        dataset.targets = (torch.rand(60, 6) < 0.4).long()
    made = multilabel_benchmark(*images, n_experiences=3, validation_size=20)
    strategy = make_strategy(evaluator=nested_evaluator(nested=True, stream=True))
    strategy.train(made.train_stream[:2])
    streams = {name: made.streams[name][:2] for name in ("test", "valid")}
    expected = strategy.eval(streams.pop(first))
    strategy.evaluator.reset_last_metrics()
    (second,) = streams.values()
    assert strategy.eval([*made.streams[first][:2], *second]) == pytest.approx(expected)
    assert list(find_nested(strategy).history) == [first]


def test_other_evaluations_emit_the_sets_they_cover_and_leave_the_matrix_unchanged(benchmark, make_strategy):
    strategy = make_strategy(evaluator=nested_evaluator(nested=True, stream=True))
    first_set = [f"{name}_Nested/{TEST}/Exp000" for name in METRICS]
    test, train = benchmark.test_stream, benchmark.train_stream
    results = strategy.eval([test[0], train[1]])  # another stream does not continue the sets
    assert [name for name in results if "Nested/" in name] == first_set
    strategy.evaluator.reset_last_metrics()
    strategy.train(train[:2])
    assert find_nested(strategy).history == {}  # what was evaluated before training is discarded
    emitted = {name.split("/")[0] for name in strategy.eval(test[:2]) if "Exp" not in name}
    known = {f"{name}_{summary}" for name in METRICS for summary in ("Last", "NestedMean")}
    assert emitted == known  # the others need the row of the first experience
    before = copy.deepcopy(history(strategy))
    assert [len(row) for row in before["mAP"]] == [0, 2]
    for stream, expected in ((test[1], []), (test[:1], first_set)):  # no set; not all that was trained
        strategy.evaluator.reset_last_metrics()
        assert list(strategy.eval(stream)) == expected
        assert history(strategy) == before


def test_resumed_run_has_the_matrix_of_an_uninterrupted_one(learn, make_strategy, model, tmp_path):
    learner, flags = copy.deepcopy(model), {"nested": True, "stream": True}
    whole = make_strategy(evaluator=nested_evaluator(**flags))
    first, second = (make_strategy(evaluator=nested_evaluator(**flags), learner=learner) for _ in range(2))
    learn(whole, [0, 1, 2])
    learn(first, [0, 1])
    state = find_nested(first).state_dict()
    torch.save(state, tmp_path / "nested.pt")
    assert torch.load(tmp_path / "nested.pt", weights_only=True)["history"] == state["history"]
    find_nested(second).load_state_dict(state)
    history(first)["mAP"].clear()  # the state is a copy, and so is what was loaded
    learn(second, [2])
    assert history(second) == history(whole)
    assert len(state["history"]["test"]["mAP"]) == 2
    for name in ("mAP_Average", "OF1_RelativeForgetting"):
        values = [s.evaluator.get_last_metrics()[f"{name}/{TEST}"] for s in (whole, second)]
        assert values[0] == values[1]


@pytest.mark.parametrize("n_trained", [0, 1, 2])  # experiences that the first strategy is trained on
def test_another_strategy_starts_a_new_history(benchmark, make_strategy, learn, model, n_trained):
    """An evaluator that was used before gives the same results as a new one."""
    shared = nested_evaluator(nested=True, experience=True, stream=True)
    first = make_strategy(evaluator=shared, learner=copy.deepcopy(model))
    first.eval(benchmark.test_stream)
    for t in range(n_trained):
        learn(first, [t])
    second = make_strategy(evaluator=shared, learner=copy.deepcopy(model))
    fresh = make_strategy(evaluator=nested_evaluator(nested=True, experience=True, stream=True))
    for t in range(3):
        assert learn(second, [t]) == learn(fresh, [t])
        assert history(second) == history(fresh)
    assert find_nested(second).stages == find_nested(fresh).stages
    untrained = make_strategy(evaluator=shared, learner=copy.deepcopy(model))
    untrained.eval(benchmark.test_stream[:2])
    assert [len(row) for row in history(untrained)["mAP"]] == [0, 2]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda whole: pickle.loads(pickle.dumps(whole))])
def test_a_copied_evaluator_continues_its_history(make_strategy, learn, duplicate):
    strategy = make_strategy(evaluator=nested_evaluator(nested=True, stream=True))
    learn(strategy, [0, 1])
    rows = copy.deepcopy(history(strategy)["mAP"])
    other = make_strategy(evaluator=duplicate(strategy.evaluator))
    learn(other, [2])
    assert history(other)["mAP"][:2] == rows
    assert len(history(other)["mAP"]) == 3


def test_set_without_images_is_a_row_without_a_score(make_strategy):
    images, wanted = TensorDataset(torch.randn(42, 8)), {"experience": True, "stream": True}
    images.targets = torch.eye(6).long().repeat(7, 1)
    late = copy.copy(images)
    late.targets = images.targets * (torch.arange(6) >= 2)  # no image shows the first two classes
    made = multilabel_benchmark(images, late, n_experiences=3)
    metrics = mean_average_precision_metrics(**wanted), f1_metrics(**wanted)
    assert make_strategy(evaluator=evaluator(*metrics)).eval(made.test_stream[:1]) == {}  # no nested set
    flags = {"nested": True, "stream": True, "per_class": True, "plot": True}
    strategy = make_strategy(evaluator=nested_evaluator(**flags))
    for t, experience in enumerate(made.train_stream[:2]):
        strategy.train(experience)
        results = strategy.eval(made.test_stream[: t + 1])
        assert math.isnan(results[f"OF1_Nested/{TEST}/Exp000"])
        assert (f"mAP_Last/{TEST}" in results) == (t > 0)
        assert isinstance(results[f"LearningCurve/{TEST}"], Plot)
    assert find_nested(strategy).average_precision["test"].isnan().tolist() == [True, True, False, False]
    for name in ("mAP", "CF1"):
        scored = [[not math.isnan(value) for value in row] for row in history(strategy)[name]]
        assert scored == [[False], [False, True]]


def test_missing_classes_and_metrics_are_rejected_with_the_fix(benchmark, make_strategy):
    stream = [copy.copy(experience) for experience in benchmark.test_stream]
    for experience in stream:
        experience.classes_seen_so_far = None
    with pytest.raises(ValueError, match=r"classes_seen_so_far.* multilabel_benchmark"):
        make_strategy(evaluator=nested_evaluator(nested=True)).eval(stream)
    with pytest.raises(ValueError, match="no nested metric; make it with multilabel_evaluator"):
        find_nested(make_strategy(evaluator=evaluator()))


# Several processes


def evaluate(make_strategy, benchmark):
    metrics = mean_average_precision_metrics(stream=True, experience=True), f1_metrics(stream=True)
    evaluator = multilabel_evaluator(*metrics, roc_auc_metrics(stream=True), loggers=[])
    strategy = make_strategy(evaluator=evaluator)
    results = strategy.eval(benchmark.test_stream)
    return {name: value for name, value in results.items() if not name.startswith("Loss")}, history(strategy)


def test_two_processes_give_the_metrics_of_one(in_two_processes, make_strategy, benchmark):
    assert any(len(experience.dataset) % 2 for experience in benchmark.test_stream)  # one image is repeated
    expected = evaluate(make_strategy, benchmark)
    assert in_two_processes(evaluate, make_strategy, benchmark) == [expected, expected]
