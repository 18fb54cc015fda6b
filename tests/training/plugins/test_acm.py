import pytest
import torch
from avalanche.benchmarks import split_online_stream
from avalanche.core import SupervisedPlugin
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from torch import nn
from torch.optim import SGD

from avalanche_agcn.training.acm import AugmentedCorrelationMatrix
from avalanche_agcn.training.graph import adjacency
from avalanche_agcn.training.losses import PartialBCEWithLogitsLoss
from avalanche_agcn.training.plugins import ACMPlugin, AGCNPlugin, OnlineReplayPlugin
from avalanche_agcn.training.storage_policy import ReservoirBuffer


def strategy_of(model, *plugins, **settings):
    return Naive(
        model=model,
        optimizer=SGD(model.parameters(), lr=0.1),
        criterion=PartialBCEWithLogitsLoss(),
        train_mb_size=8,
        plugins=list(plugins),
        evaluator=EvaluationPlugin(),
        **settings,
    )


def whole_dataset(experience):
    images, targets, _ = zip(*experience.dataset, strict=True)
    return torch.stack(images), torch.stack(targets)


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_matrix_after_training_equals_a_count_of_the_whole_stream(benchmark, make_model, preset):
    model, agcn, acm = make_model(), AGCNPlugin(lambda_gph=1.0), ACMPlugin(preset=preset)
    strategy = strategy_of(model, agcn, acm)
    expected = AugmentedCorrelationMatrix()
    for t, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        images, targets = whole_dataset(experience)
        soft = None
        if t > 0:
            with torch.no_grad():
                logits = agcn.teacher.model(images)
            soft = logits.sigmoid() if preset == "paper" else logits.softmax(dim=1)
        expected.begin(2)
        expected.update(targets[:, 2 * t : 2 * t + 2], soft)
    torch.testing.assert_close(acm.acm.matrix(), expected.matrix(), rtol=0, atol=1e-6)
    torch.testing.assert_close(model.adjacency, adjacency(acm.acm, preset).float())


def test_graph_is_refreshed_after_every_step(benchmark, make_model):
    graphs = []

    class Watch(ACMPlugin):
        def after_training_iteration(self, strategy, **kwargs):
            graphs.append(strategy.model.adjacency)
            super().after_training_iteration(strategy, **kwargs)

    strategy_of(make_model(), Watch()).train(benchmark.train_stream[0])
    assert torch.equal(graphs[0], torch.eye(2))  # nothing counted before the first step
    assert not torch.equal(graphs[1], graphs[0])


def test_batch_is_counted_before_its_own_step_on_request(benchmark, make_model):
    graphs, batches = [], []

    class Watch(SupervisedPlugin):
        def after_forward(self, strategy, **kwargs):
            graphs.append(strategy.model.adjacency.clone())
            batches.append(strategy.mb_y.clone())

    plugins = AGCNPlugin(lambda_gph=1.0), ACMPlugin(count_before_step=True), Watch()
    strategy = strategy_of(make_model(), *plugins)
    strategy.train(benchmark.train_stream[0])
    acm = AugmentedCorrelationMatrix()
    acm.begin(2)
    for graph, targets in zip(graphs, batches, strict=True):
        acm.update(targets[:, :2])  # the batch itself is in the graph that it is trained with
        torch.testing.assert_close(graph, adjacency(acm).float())
    strategy.train(benchmark.train_stream[1])
    images, targets = whole_dataset(benchmark.train_stream[1])
    with torch.no_grad():
        soft = plugins[0].teacher.model(images).sigmoid()
    acm.begin(2)
    acm.update(targets[:, 2:4], soft)
    torch.testing.assert_close(plugins[1].acm.matrix(), acm.matrix(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("newer_as_negative", [False, True])
@pytest.mark.parametrize("memory_first", [False, True])
def test_replayed_images_are_not_counted_before_the_step_either(
    benchmark, make_model, newer_as_negative, memory_first
):
    memory = OnlineReplayPlugin(ReservoirBuffer(20), newer_as_negative=newer_as_negative)
    acm = ACMPlugin(count_before_step=True)
    strategy = strategy_of(make_model(), *((memory, acm) if memory_first else (acm, memory)))
    expected = AugmentedCorrelationMatrix()
    for t, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        expected.begin(2)
        expected.update(whole_dataset(experience)[1][:, 2 * t : 2 * t + 2])
    assert torch.equal(acm.acm.state_dict()["hard"], expected.state_dict()["hard"])
    assert torch.equal(acm.acm.matrix(), expected.matrix())


def test_official_starts_and_counts_as_the_authors_program():
    official, paper = ACMPlugin(preset="official"), ACMPlugin()
    assert (official.acm.hard_start, official.acm.soft_start) == (1e-6, 1e-10)
    assert (paper.acm.hard_start, paper.acm.soft_start) == (0, 0)
    assert (official.count_before_step, paper.count_before_step) == (True, False)
    mixed = ACMPlugin(preset="official", hard_start=0.0, soft_start=0.0, count_before_step=False)
    assert (mixed.acm.hard_start, mixed.acm.soft_start, mixed.count_before_step) == (0, 0, False)


def test_without_teacher_experiences_are_unrelated(benchmark, make_model):
    plugin = ACMPlugin()
    strategy = strategy_of(make_model(), plugin)
    for experience in benchmark.train_stream:
        strategy.train(experience)
    matrix = plugin.acm.matrix()
    blocks = torch.block_diag(*[torch.ones(2, 2)] * 3).bool()
    assert matrix[~blocks].eq(0).all()
    assert matrix[blocks].gt(0).all()


def test_statistics_of_any_model_can_be_counted(benchmark):
    plugin = ACMPlugin()
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 6))
    strategy_of(model, plugin).train(benchmark.train_stream[0])
    assert plugin.acm.n_seen == 2


def test_replayed_images_are_not_counted(benchmark, make_model):
    acm = ACMPlugin()
    replay = ReplayPlugin(mem_size=20, storage_policy=ReservoirSamplingBuffer(max_size=20))
    strategy = strategy_of(make_model(), acm, replay)
    for t, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        own = slice(2 * t, 2 * t + 2)
        counted = AugmentedCorrelationMatrix()
        counted.begin(2)
        counted.update(whole_dataset(experience)[1][:, own])
        assert torch.equal(acm.state_dict()["hard"], counted.state_dict()["hard"])


def test_online_experiences_belong_to_the_one_they_are_part_of(benchmark, make_model):
    model, agcn, acm = make_model(), AGCNPlugin(lambda_gph=1.0), ACMPlugin()
    strategy = strategy_of(model, agcn, acm)
    for experience in split_online_stream(benchmark.train_stream, experience_size=8):
        strategy.train(experience)
    assert acm.acm.block_sizes == (2, 2, 2)
    assert agcn.teacher.model.n_seen == 4


def test_training_again_on_an_experience_goes_on_counting(benchmark, make_model):
    once, twice = ACMPlugin(), ACMPlugin()
    strategy_of(make_model(), once).train(benchmark.train_stream[0])
    strategy = strategy_of(make_model(), twice)
    strategy.train(benchmark.train_stream[0])
    strategy.train(benchmark.train_stream[0])
    assert twice.acm.block_sizes == (2,)
    torch.testing.assert_close(twice.acm.matrix(), once.acm.matrix())
    assert twice.acm.state_dict()["hard"].sum() == 2 * once.acm.state_dict()["hard"].sum()


def test_evaluation_neither_counts_nor_grows(benchmark, make_model):
    model, acm = make_model(), ACMPlugin()
    strategy = strategy_of(model, acm)
    strategy.train(benchmark.train_stream[0])
    before = acm.acm.matrix().clone()
    strategy.eval(benchmark.test_stream)
    assert torch.equal(acm.acm.matrix(), before)
    assert model.n_seen == 2


def test_settings_reach_the_graph(benchmark, make_model):
    for settings in (
        {"graph": "identity"},
        {"graph": "plain"},
        {"cross_blocks": False},
        {"neighbour_weight": 0.9},
        {"preset": "official", "new_threshold": 0.9, "cross_threshold": 0.05},
    ):
        model, acm = make_model(), ACMPlugin(**settings)
        strategy = strategy_of(model, AGCNPlugin(lambda_gph=1.0), acm)
        for experience in benchmark.train_stream[:2]:
            strategy.train(experience)
        settings = {"preset": "paper"} | settings
        if "graph" in settings:
            settings["preset"] = settings.pop("graph")
        torch.testing.assert_close(model.adjacency, adjacency(acm.acm, **settings).float())


@pytest.mark.parametrize("beside", [[], [AGCNPlugin()]])
def test_a_model_that_learned_classes_which_were_not_counted_is_rejected(benchmark, make_model, beside):
    model = make_model()
    strategy_of(model).train(benchmark.train_stream[0])
    strategy = strategy_of(model, *beside, ACMPlugin())
    message = "4 classes were seen so far, 2 of them in this experience, but .* has counted 0"
    with pytest.raises(ValueError, match=message):
        strategy.train(benchmark.train_stream[1])
