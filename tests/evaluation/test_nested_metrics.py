"""The nested matrix from one pass, against each set evaluated by itself."""

import copy
import math

import pytest
import torch
from avalanche.benchmarks import split_online_stream, with_classes_timeline
from avalanche.training.plugins import EvaluationPlugin
from torch import nn
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.evaluation.figures import TextFigure
from avalanche_agcn.evaluation.functional import (
    average_precision,
    mean_average_precision,
    nested_summary,
    precision_recall_f1,
)
from avalanche_agcn.evaluation.nested_metrics import NestedPluginMetric, find_nested, forgetting_metrics
from avalanche_agcn.models import AGCNModel
from avalanche_agcn.training.plugins import ACMPlugin, AGCNPlugin

TEST = "eval_phase/test_stream"


def evaluator(**flags):
    return EvaluationPlugin(forgetting_metrics(**flags), loggers=[])


def alone(model, tensors, i):
    """mAP, CF1 and OF1 of nested set i, by itself."""
    x, y = (torch.cat(parts) for parts in zip(*tensors[: i + 1]))
    with torch.no_grad():
        scores, targets = model(x)[:, : 2 * (i + 1)], y[:, : 2 * (i + 1)]
    f1 = precision_recall_f1(scores, targets, threshold=0.0)
    return mean_average_precision(scores, targets), f1.CF1, f1.OF1


def train_stream(strategy, benchmark, tensors):
    """Train and evaluate as the package means it; the matrices that evaluating set by set gives."""
    expected = {"mAP": [], "CF1": [], "OF1": []}
    for t, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        strategy.eval(benchmark.test_stream[: t + 1])
        rows = zip(*(alone(strategy.model, tensors, i) for i in range(t + 1)))
        for figure, row in zip(expected, rows):
            expected[figure].append(pytest.approx(list(row), abs=1e-12))
    return expected


def test_matrices_equal_each_set_evaluated_by_itself(benchmark, make_strategy, stream_tensors):
    strategy = make_strategy(evaluator=evaluator(nested=True, experience=True, stream=True))
    expected = train_stream(strategy, benchmark, stream_tensors)
    history = find_nested(strategy).history["test"]
    for figure, rows in expected.items():
        assert history.matrix(figure) == rows
    results = strategy.evaluator.get_last_metrics()
    matrix, summary = history.matrix("CF1"), history.summary("CF1")
    assert summary.forgetting_absolute != 0
    assert [results[f"CF1_Nested/{TEST}/Exp{i:03}"] for i in range(3)] == matrix[-1]
    assert results[f"CF1_Last/{TEST}"] == summary.last
    assert results[f"CF1_NestedMean/{TEST}"] == summary.nested
    assert results[f"CF1_Average/{TEST}"] == summary.average
    assert results[f"CF1_Forgetting/{TEST}"] == summary.forgetting_absolute
    assert results[f"CF1_RelativeForgetting/{TEST}"] == summary.forgetting_relative
    lost = [results[f"CF1_Forgetting/{TEST}/Exp{i:03}"] for i in range(2)]
    assert lost == pytest.approx([matrix[0][0] - matrix[2][0], matrix[1][1] - matrix[2][1]])
    assert find_nested(strategy).result()["test"]["CF1"] == nested_summary(matrix)


def test_each_image_goes_through_the_network_once(benchmark, make_strategy, model):
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    strategy = make_strategy(evaluator=evaluator(nested=True, stream=True))
    strategy.eval(benchmark.test_stream)
    assert sum(seen) == sum(len(experience.dataset) for experience in benchmark.test_stream)


def test_whole_stream_may_be_evaluated_before_it_is_learned(benchmark, make_strategy, stream_tensors):
    """What comes after the last experience trained on is not looked at."""
    strategy = make_strategy(evaluator=evaluator(nested=True))
    for t, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)
        assert len(find_nested(strategy).history["test"].matrix("mAP")) == t + 1
        row = find_nested(strategy).history["test"].matrix("mAP")[t]
        assert row == pytest.approx([alone(strategy.model, stream_tensors, i)[0] for i in range(t + 1)])


def test_evaluation_in_the_midst_of_training_is_replaced_by_the_last_one(
    benchmark, make_strategy, stream_tensors
):
    strategy = make_strategy(evaluator=evaluator(nested=True), train_epochs=2, eval_every=1)
    for t, experience in enumerate(benchmark.train_stream):
        strategy.train(experience, eval_streams=[benchmark.test_stream[: t + 1]])
        row = find_nested(strategy).history["test"].matrix("mAP")[t]
        assert row == pytest.approx([alone(strategy.model, stream_tensors, i)[0] for i in range(t + 1)])
    assert [len(row) for row in find_nested(strategy).history["test"].matrix("mAP")] == [1, 2, 3]


def test_online_stream_with_the_default_evaluator_fills_the_matrix(benchmark, make_strategy, stream_tensors):
    strategy = make_strategy()
    expected = []
    for part in split_online_stream(benchmark.train_stream, experience_size=16, seed=0):
        strategy.train(part)
        if part.is_last_subexp:
            t = part.origin_experience.current_experience
            strategy.eval(benchmark.test_stream[: t + 1])
            expected.append([alone(strategy.model, stream_tensors, i)[0] for i in range(t + 1)])
    matrix = find_nested(strategy).history["test"].matrix("mAP")
    assert [len(row) for row in matrix] == [1, 2, 3]
    assert matrix == [pytest.approx(row) for row in expected]


@pytest.mark.parametrize("trained", [True, False])
def test_classes_timeline_leaves_the_nested_sets_as_they_are(
    benchmark, make_strategy, stream_tensors, trained
):
    """The timeline takes every label of a test image for a class of its experience."""
    timeline = with_classes_timeline(benchmark)
    assert len(timeline.test_stream[0].classes_seen_so_far) > 2
    strategy = make_strategy(evaluator=evaluator(nested=True))
    for t, experience in enumerate(timeline.train_stream):
        if trained:
            strategy.train(experience)
        strategy.eval(timeline.test_stream[: t + 1])
        row = find_nested(strategy).history["test"].matrix("mAP")[t]
        assert row == pytest.approx([alone(strategy.model, stream_tensors, i)[0] for i in range(t + 1)])


@pytest.mark.parametrize("first", ["test", "valid"])
def test_only_the_first_of_two_streams_is_scored_and_under_its_own_name(make_strategy, first):
    torch.manual_seed(0)
    names, images = ("test", "valid"), [TensorDataset(torch.randn(60, 8)) for _ in range(2)]
    for dataset in images:
        dataset.targets = (torch.rand(60, 6) < 0.4).long()
    made = multilabel_benchmark(*images, n_experiences=3, validation_size=20)
    strategy = make_strategy(evaluator=evaluator(nested=True, stream=True))
    strategy.train(made.train_stream[:2])
    streams = {name: made.streams[name][:2] for name in names}
    expected = strategy.eval(streams[first])
    strategy.evaluator.reset_last_metrics()
    second = names[1 - names.index(first)]
    assert strategy.eval([*streams[first], *streams[second]]) == pytest.approx(expected)
    assert list(find_nested(strategy).history) == [first]


def test_experiences_of_another_stream_do_not_continue_the_sets(benchmark, make_strategy):
    strategy = make_strategy(evaluator=evaluator(nested=True))
    results = strategy.eval([benchmark.test_stream[0], benchmark.train_stream[1]])
    assert list(results) == [f"{figure}_Nested/{TEST}/Exp000" for figure in ("mAP", "CF1", "OF1")]


def test_what_was_evaluated_before_training_is_no_part_of_the_matrix(
    benchmark, make_strategy, stream_tensors
):
    strategy = make_strategy(evaluator=evaluator(nested=True, stream=True))
    strategy.eval(benchmark.test_stream)
    strategy.train(benchmark.train_stream[0])
    assert find_nested(strategy).history == {}
    results = strategy.eval(benchmark.test_stream[:1])
    after_first = pytest.approx(alone(strategy.model, stream_tensors, 0)[0])
    assert find_nested(strategy).history["test"].matrix("mAP") == [[after_first]]
    assert results[f"mAP_Last/{TEST}"] == after_first


def test_evaluations_that_are_no_nested_sets_emit_nothing_and_leave_the_matrix_alone(
    benchmark, make_strategy
):
    strategy = make_strategy(evaluator=evaluator(nested=True, stream=True))
    strategy.train(benchmark.train_stream[:2])
    strategy.eval(benchmark.test_stream[:2])
    before = find_nested(strategy).history["test"].matrix("mAP")
    strategy.evaluator.reset_last_metrics()
    assert strategy.eval(benchmark.test_stream[1]) == {}
    assert before == [[], pytest.approx(before[1])]
    part = strategy.eval(benchmark.test_stream[:1])  # set 0, but not up to what was trained
    assert list(part) == [f"{figure}_Nested/{TEST}/Exp000" for figure in ("mAP", "CF1", "OF1")]
    assert find_nested(strategy).history["test"].matrix("mAP") == before


def test_figures_that_need_a_row_not_evaluated_are_not_emitted(benchmark, make_strategy):
    strategy = make_strategy(evaluator=evaluator(stream=True))
    strategy.train(benchmark.train_stream)
    results = strategy.eval(benchmark.test_stream)
    kinds = {name.split("/")[0] for name in results}
    assert kinds == {
        f"{figure}_{kind}" for figure in ("mAP", "CF1", "OF1") for kind in ("Last", "NestedMean")
    }


def test_model_that_was_trained_elsewhere_is_evaluated_on_all_sets(benchmark, make_strategy, stream_tensors):
    strategy = make_strategy(evaluator=evaluator(nested=True))
    strategy.eval(benchmark.test_stream)
    row = find_nested(strategy).history["test"].matrix("mAP")[2]
    assert row == pytest.approx([alone(strategy.model, stream_tensors, i)[0] for i in range(3)])


def test_resumed_run_has_the_matrix_of_an_uninterrupted_one(benchmark, make_strategy, model, tmp_path):
    whole = make_strategy(evaluator=evaluator(nested=True, stream=True))
    learner = copy.deepcopy(model)
    first = make_strategy(evaluator=evaluator(nested=True, stream=True), learner=learner)
    second = make_strategy(evaluator=evaluator(nested=True, stream=True), learner=learner)
    for strategy, experiences in ((whole, [0, 1, 2]), (first, [0, 1])):
        for t in experiences:
            torch.manual_seed(t)
            strategy.train(benchmark.train_stream[t])
            strategy.eval(benchmark.test_stream[: t + 1])
    torch.save(find_nested(first).state_dict(), tmp_path / "nested.pt")
    find_nested(second).load_state_dict(torch.load(tmp_path / "nested.pt", weights_only=True))
    torch.manual_seed(2)
    second.train(benchmark.train_stream[2])
    second.eval(benchmark.test_stream)
    assert find_nested(second).state_dict()["history"] == find_nested(whole).state_dict()["history"]
    for name in ("mAP_Average", "OF1_RelativeForgetting"):
        values = [s.evaluator.get_last_metrics()[f"{name}/{TEST}"] for s in (whole, second)]
        assert values[0] == values[1]


def test_per_class_and_figure_are_emitted(benchmark, make_strategy, model, stream_tensors):
    metrics = evaluator(per_class=True, figure=True, class_names=list("abcdef"))
    strategy = make_strategy(evaluator=metrics)
    results = strategy.eval(benchmark.test_stream)
    x, y = (torch.cat(parts) for parts in zip(*stream_tensors))
    expected = average_precision(model(x), y).tolist()
    assert results[f"AP_Nested/{TEST}"] == pytest.approx(dict(zip("abcdef", expected)))
    assert find_nested(strategy).average_precision["test"].tolist() == pytest.approx(expected)
    assert isinstance(results[f"LearningCurve/{TEST}"], TextFigure)


def test_increment_without_images_has_no_score_and_does_no_harm(make_strategy, model):
    generator = torch.Generator().manual_seed(0)
    train, test = (TensorDataset(torch.randn(40, 8, generator=generator)) for _ in range(2))
    train.targets = (torch.rand(40, 6, generator=generator) < 0.4).long()
    test.targets = train.targets.clone()
    test.targets[:, :2] = 0  # so that no image becomes relevant at experience 0
    stream = multilabel_benchmark(train, test, n_experiences=3).test_stream
    assert len(stream[0].dataset) == 0
    strategy = make_strategy(evaluator=evaluator(nested=True, stream=True))
    strategy.eval(stream)
    row = find_nested(strategy).history["test"].matrix("mAP")[2]
    assert math.isnan(row[0])
    assert not math.isnan(row[1])


@pytest.mark.parametrize("saved_graphs", [False, True])
def test_set_without_images_is_a_row_without_a_score(make_strategy, saved_graphs):
    train, test = (TensorDataset(torch.randn(40, 8)) for _ in range(2))
    train.targets = torch.eye(6).long().repeat(7, 1)[:40]
    test.targets = train.targets.clone()
    test.targets[:, :2] = 0
    made = multilabel_benchmark(train, test, n_experiences=3)
    flags = {"nested": True, "stream": True, "per_class": True, "figure": True, "saved_graphs": saved_graphs}
    strategy = make_strategy(learner=SavedGraphs(3), evaluator=evaluator(**flags))
    for t, experience in enumerate(made.train_stream[:2]):
        strategy.train(experience)
        results = strategy.eval(made.test_stream[: t + 1])
        assert math.isnan(results[f"OF1_Nested/{TEST}/Exp000"])
        assert (f"mAP_Last/{TEST}" in results) == (t > 0)
    assert find_nested(strategy).average_precision["test"].isnan().tolist() == [True, True, False, False]
    history = find_nested(strategy).history["test"]
    for name in ("mAP", "CF1", "mAP_Saved") if saved_graphs else ("mAP", "CF1"):
        scored = [[not math.isnan(value) for value in row] for row in history.matrix(name)]
        assert scored == [[False], [False, True]]


def test_experiences_without_classes_are_refused_with_the_fix(benchmark, make_strategy):
    stream = [copy.copy(experience) for experience in benchmark.test_stream]
    for experience in stream:
        experience.classes_seen_so_far = None
    strategy = make_strategy(evaluator=evaluator(nested=True))
    with pytest.raises(
        ValueError, match=r"classes_seen_so_far`; make the benchmark with multilabel_benchmark"
    ):
        strategy.eval(stream)


class SavedGraphs(nn.Module):
    """Scores of all classes; and for every set i a scaling of its own, over the set's classes."""

    def __init__(self, n_sets):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Linear(8, 5)
        self.head = nn.Linear(5, 6)
        self.scales = torch.randn(n_sets, 6)

    def forward(self, x):
        return self.head(self.backbone(x))

    def nested_logits(self, x=None, *, features=None):
        features = self.backbone(x) if features is None else features
        logits = self.head(features)
        return [(logits * scale)[:, : 2 * (i + 1)] for i, scale in enumerate(self.scales)]


def test_saved_graphs_score_each_set_from_the_same_pass(benchmark, make_strategy, stream_tensors):
    model, seen = SavedGraphs(3), []
    model.backbone.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    strategy = make_strategy(learner=model, evaluator=evaluator(nested=True, saved_graphs=True))
    results = strategy.eval(benchmark.test_stream)
    assert sum(seen) == sum(len(experience.dataset) for experience in benchmark.test_stream)
    history = find_nested(strategy).history["test"]
    for i in range(3):
        x, y = (torch.cat(parts) for parts in zip(*stream_tensors[: i + 1]))
        with torch.no_grad():
            expected = mean_average_precision(model.nested_logits(x)[i], y[:, : 2 * (i + 1)])
        assert results[f"mAP_Saved_Nested/{TEST}/Exp{i:03}"] == pytest.approx(expected)
        assert history.matrix("mAP_Saved")[2][i] == pytest.approx(expected)
        assert history.matrix("mAP")[2][i] == pytest.approx(alone(model, stream_tensors, i)[0])
    assert history.matrix("mAP") != history.matrix("mAP_Saved")
    assert len(model.backbone._forward_hooks) == 1  # ours is gone, the one of this test is left


def test_saved_graphs_of_agcn_are_those_of_each_experience(benchmark, make_strategy, stream_tensors):
    torch.manual_seed(0)
    backbone = nn.Linear(8, 5)
    backbone.num_features = 5
    model = AGCNModel(backbone, torch.randn(6, 4), hidden_features=7)
    strategy = make_strategy(
        learner=model,
        evaluator=evaluator(nested=True, saved_graphs=True),
        plugins=[AGCNPlugin(lambda_gph=0.0), ACMPlugin()],
    )
    for t, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        strategy.eval(benchmark.test_stream[: t + 1])
    history = find_nested(strategy).history["test"]
    saved, current = history.matrix("mAP_Saved"), history.matrix("mAP")
    assert [row[-1] for row in saved] == [row[-1] for row in current]  # the newest set has the current graph
    assert saved[2][0] != current[2][0]
    x, y = stream_tensors[0]
    with torch.no_grad():
        assert saved[2][0] == pytest.approx(mean_average_precision(model.nested_logits(x)[0], y[:, :2]))


def test_saved_graphs_beyond_the_evaluated_sets_are_not_looked_at(benchmark, make_strategy, stream_tensors):
    strategy = make_strategy(learner=SavedGraphs(3), evaluator=evaluator(nested=True, saved_graphs=True))
    results = strategy.eval(benchmark.test_stream[:2])
    assert f"mAP_Saved_Nested/{TEST}/Exp001" in results
    assert f"mAP_Saved_Nested/{TEST}/Exp002" not in results


def test_scores_are_let_go_after_the_evaluation(benchmark, make_strategy):
    strategy = make_strategy(learner=SavedGraphs(3), evaluator=evaluator(nested=True, saved_graphs=True))
    strategy.eval(benchmark.test_stream)
    metric = find_nested(strategy)
    assert len(metric._scores) == len(metric._saved) == 0


def test_nothing_asked_for_is_no_metric():
    assert forgetting_metrics() == []


def test_find_nested_says_how_to_get_one(make_strategy):
    with pytest.raises(ValueError, match="no nested metric; make it with multilabel_evaluator"):
        find_nested(make_strategy(evaluator=EvaluationPlugin(loggers=[])))


def test_reset_forgets_the_matrices(benchmark, make_strategy):
    strategy = make_strategy(evaluator=evaluator(nested=True))
    strategy.eval(benchmark.test_stream)
    metric = find_nested(strategy)
    assert isinstance(metric, NestedPluginMetric)
    metric.reset()
    assert metric.history == {}
