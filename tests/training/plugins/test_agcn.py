"""AGCN's losses and teacher (`AGCNPlugin`), and its counts and graph (`ACMPlugin`)."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from avalanche.benchmarks import split_online_stream
from avalanche.core import SupervisedPlugin
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from torch import nn
from torch.optim import SGD

from avalanche_agcn.benchmarks.multilabel import assemble
from avalanche_agcn.training.acm import AugmentedCorrelationMatrix
from avalanche_agcn.training.graph import adjacency
from avalanche_agcn.training.losses import PartialBCEWithLogitsLoss
from avalanche_agcn.training.plugins import ACMPlugin, AGCNPlugin, OnlineReplayPlugin
from avalanche_agcn.training.storage_policy import ReservoirBuffer


class Recorder(SupervisedPlugin):
    """Keeps what each step of the last experience computed, before the backward pass and after it."""

    def before_training_exp(self, strategy, **kwargs):
        self.steps = []

    def before_backward(self, strategy, **kwargs):
        plugin = next(p for p in strategy.plugins if isinstance(p, AGCNPlugin))
        self.steps.append(
            {
                "x": strategy.mb_x,
                "y": strategy.mb_y,
                "logits": strategy.mb_output.detach(),
                "loss": strategy.loss.detach().clone(),
                "embeddings": strategy.model.embeddings().detach(),
                "teacher": copy.deepcopy(plugin.teacher.model),
            }
        )

    def after_backward(self, strategy, **kwargs):
        self.steps[-1]["gradients"] = {name: p.grad.clone() for name, p in strategy.model.named_parameters()}


def train(stream, model, *plugins, lr=0.1):
    strategy = Naive(
        model=model,
        optimizer=SGD(model.parameters(), lr=lr),
        criterion=PartialBCEWithLogitsLoss(),
        train_mb_size=8,
        plugins=list(plugins),
        evaluator=EvaluationPlugin(),
    )
    for experience in stream:
        torch.manual_seed(0)
        strategy.train(experience)
    return strategy


def record(stream, model, plugin, *, graph="paper", lr=0.1):
    """Records of the steps of the last experience."""
    recorder = Recorder()
    train(stream, model, plugin, ACMPlugin(graph=graph), recorder, lr=lr)
    return recorder.steps


def whole_dataset(experience):
    images, targets, _ = zip(*experience.dataset, strict=True)
    return torch.stack(images), torch.stack(targets)


def count(stream, soft_labels=lambda t, images: None):
    """The matrix of all images of a stream, counted experience by experience."""
    acm = AugmentedCorrelationMatrix()
    for t, experience in enumerate(stream):
        images, targets = whole_dataset(experience)
        acm.begin(2)
        acm.update(targets[:, 2 * t : 2 * t + 2], soft_labels(t, images))
    return acm


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("gph_reduction", ["mean", "sum"])
def test_loss_is_the_weighted_sum_of_three(benchmark, make_model, reduction, gph_reduction):
    weights = {"lambda_cls": 0.3, "lambda_dst": 0.5, "lambda_gph": 0.7}
    plugin = AGCNPlugin(**weights, reduction=reduction, gph_reduction=gph_reduction)
    for step in record(benchmark.train_stream, make_model(), plugin, lr=0.01):
        teacher, n_old, n_new = step["teacher"], 4, 2
        cls = F.binary_cross_entropy_with_logits(step["logits"][:, 4:], step["y"][:, 4:])
        dst = F.binary_cross_entropy_with_logits(step["logits"][:, :4], teacher(step["x"]).sigmoid())
        gph = (step["embeddings"][:4] - teacher.embeddings()).pow(2).mean()
        if reduction == "sum":
            cls, dst = n_new * cls, n_old * dst
        if gph_reduction == "sum":
            gph = gph * n_old * 16
        torch.testing.assert_close(step["loss"].squeeze(), 0.3 * cls + 0.5 * dst + 0.7 * gph)
    assert gph > 0


def test_sum_is_over_all_labelled_classes_if_unlabelled_is_negative(benchmark, make_model):
    plan = replace(benchmark.plan, protocol=replace(benchmark.protocol, unlabelled_as_negative=True))
    plugin = AGCNPlugin(lambda_cls=1.0, lambda_dst=0.0, lambda_gph=0.0, reduction="sum")
    for step in record(assemble(plan).train_stream, make_model(), plugin):
        cells = F.binary_cross_entropy_with_logits(step["logits"], step["y"], reduction="none")
        torch.testing.assert_close(step["loss"].squeeze(), cells.sum(1).mean())


def test_first_experience_has_the_criterion_alone(benchmark, make_model):
    plugin = AGCNPlugin(lambda_cls=0.5, lambda_dst=100.0, lambda_gph=100.0)
    for step in record(benchmark.train_stream[:1], make_model(), plugin):
        expected = F.binary_cross_entropy_with_logits(step["logits"], step["y"][:, :2])
        torch.testing.assert_close(step["loss"].squeeze(), expected)
        assert step["teacher"] is None


def largest_gradients(stream, model, graph):
    """Of each step, under distillation alone."""
    plugin = AGCNPlugin(lambda_cls=0.0, lambda_dst=1.0, lambda_gph=0.0)
    steps = record(stream, model, plugin, graph=graph)
    return [max(g.abs().max() for g in step["gradients"].values()) for step in steps]


def test_distillation_has_no_gradient_while_the_student_is_the_teacher(benchmark, make_model):
    assert max(largest_gradients(benchmark.train_stream[:2], make_model(), "identity")) < 1e-6
    # As soon as they differ there is one: here by the student's graph, which changes.
    assert largest_gradients(benchmark.train_stream[:2], make_model(), "paper")[-1] > 1e-4


@pytest.mark.parametrize("frozen", [True, False])
def test_teacher_and_student_see_the_same_batch_norm_only_if_it_is_frozen(benchmark, make_model, frozen):
    model = make_model(freeze_batchnorm=frozen)
    model.backbone.layers.insert(1, nn.BatchNorm2d(8))
    first = largest_gradients(benchmark.train_stream[:2], model, "identity")[0]
    assert first < 1e-7 if frozen else first > 1e-4


def test_relationship_loss_pulls_old_nodes_only(benchmark, make_model):
    def last_distance(steps):
        return (steps[-1]["embeddings"][:2] - steps[-1]["teacher"].embeddings()).pow(2).mean()

    pull = AGCNPlugin(lambda_cls=0.0, lambda_dst=0.0, lambda_gph=10.0)
    free = AGCNPlugin(lambda_cls=0.0, lambda_dst=1e-12, lambda_gph=0.0)
    # The graph moves with every batch, so the last step is compared with no pull at all.
    pulled, unpulled = (record(benchmark.train_stream[:2], make_model(), p, lr=0.3) for p in (pull, free))
    assert last_distance(pulled) < 0.5 * last_distance(unpulled)
    for step in pulled:  # images play no part in it
        assert all(name.startswith("gcn") or not g.any() for name, g in step["gradients"].items())


def test_teacher_is_the_model_of_the_previous_experience_and_is_not_trained(benchmark, make_model):
    model, plugin = make_model(), AGCNPlugin(lambda_gph=1.0)
    strategy = train(benchmark.train_stream[:1], model, plugin, ACMPlugin())
    assert plugin.teacher.model is None
    for t, experience in enumerate(benchmark.train_stream[1:], 1):
        previous = {name: value.clone() for name, value in model.state_dict().items()}
        strategy.train(experience)
        teacher = plugin.teacher.model
        assert teacher.n_seen == 2 * t
        assert all(torch.equal(value, previous[name]) for name, value in teacher.state_dict().items())
        assert not torch.equal(model.gcn.first.weight, teacher.gcn.first.weight)
    optimized = {id(p) for group in strategy.optimizer.param_groups for p in group["params"]}
    assert optimized == {id(p) for p in model.parameters()}
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    assert not any(module.training for module in teacher.modules())


def test_a_step_needs_one_pass_of_the_teachers_backbone_and_of_the_students_gcn(benchmark, make_model):
    calls = {"backbone": 0, "gcn": 0, "student's gcn": 0, "steps": 0}

    def count_calls(name, *_):
        calls[name] += 1

    class Counter(SupervisedPlugin):
        def before_training_exp(self, strategy, **kwargs):
            teacher = plugin.teacher.model
            for name, module in zip(calls, (teacher.backbone, teacher.gcn, model.gcn)):
                module.register_forward_hook(lambda *_, name=name: count_calls(name))

        def after_training_iteration(self, strategy, **kwargs):
            count_calls("steps")

    model, plugin = make_model(), AGCNPlugin(lambda_gph=1.0)
    strategy = train(benchmark.train_stream[:1], model, plugin, ACMPlugin())
    strategy.plugins.insert(0, Counter())
    strategy.train(benchmark.train_stream[1])
    n = calls["steps"]
    assert n > 1
    assert calls == {"backbone": n, "gcn": 1, "student's gcn": n, "steps": n}  # the teacher's graph rests


def test_a_loaded_first_experience_has_nothing_of_the_teacher_before(benchmark, make_model):
    plugin = AGCNPlugin(lambda_gph=1.0)
    record(benchmark.train_stream[:2], make_model(), plugin)
    assert plugin.teacher.n_old == 2
    plugin.load_state_dict(AGCNPlugin().state_dict())
    assert (plugin.teacher.model, plugin.teacher.n_old) == (None, 0)


def test_order_of_the_two_plugins_does_not_matter(benchmark, make_model):
    plugins = [AGCNPlugin(lambda_gph=1.0), ACMPlugin()], [ACMPlugin(), AGCNPlugin(lambda_gph=1.0)]
    one, other = (train(benchmark.train_stream, make_model(), *own).model.state_dict() for own in plugins)
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_saved_state_goes_on_in_the_middle_of_an_experience(benchmark, make_model, tmp_path):
    class Saver(SupervisedPlugin):
        def after_training_iteration(self, strategy, **kwargs):
            if strategy.clock.train_exp_iterations == 1 and parts[0].n_seen == 4:
                torch.save([part.state_dict() for part in parts], tmp_path / "state.pt")

    parts = make_model(), AGCNPlugin(lambda_gph=1.0), ACMPlugin()
    train(benchmark.train_stream[:2], *parts, Saver())
    resumed = make_model(seed=1), AGCNPlugin(lambda_gph=1.0), ACMPlugin()
    for part, state in zip(resumed, torch.load(tmp_path / "state.pt", weights_only=True), strict=True):
        part.load_state_dict(state)
    assert resumed[1].state_dict().keys() == parts[1].state_dict().keys()  # before training too
    train(benchmark.train_stream[1:2], *resumed)
    assert resumed[2].acm.block_sizes == (2, 2)
    for name, value in parts[1].teacher.model.state_dict().items():
        assert torch.equal(resumed[1].teacher.model.state_dict()[name], value)


@pytest.mark.parametrize("before_step", [False, True])
@pytest.mark.parametrize("preset", ["paper", "official"])
def test_matrix_after_training_equals_a_count_of_the_whole_stream(benchmark, make_model, preset, before_step):
    agcn, acm = AGCNPlugin(lambda_gph=1.0), ACMPlugin(preset=preset, count_before_step=before_step)
    acm.acm.hard_start = acm.acm.soft_start = 0.0
    teachers = []
    strategy = train([], make_model(), agcn, acm)
    for experience in benchmark.train_stream:
        strategy.train(experience)
        teachers.append(agcn.teacher.model)

    @torch.no_grad()
    def soft_labels(t, images):
        if t == 0:
            return None
        logits = teachers[t](images)
        return logits.sigmoid() if preset == "paper" else logits.softmax(dim=1)

    expected = count(benchmark.train_stream, soft_labels).matrix()
    torch.testing.assert_close(acm.acm.matrix(), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(strategy.model.adjacency, adjacency(acm.acm, preset).float())


@pytest.mark.parametrize("before_step", [False, True])
def test_graph_of_a_step_has_the_batches_before_it_or_on_request_its_own(benchmark, make_model, before_step):
    graphs, batches = [], []

    class Watch(SupervisedPlugin):
        def after_forward(self, strategy, **kwargs):
            graphs.append(strategy.model.adjacency.clone())
            batches.append(strategy.mb_y.clone())

    plugin = ACMPlugin(graph="plain", count_before_step=before_step)
    train(benchmark.train_stream[:1], make_model(), plugin, Watch())
    acm = AugmentedCorrelationMatrix()
    acm.begin(2)
    for graph, targets in zip(graphs, batches, strict=True):
        if before_step:
            acm.update(targets[:, :2])
        torch.testing.assert_close(graph, adjacency(acm, "plain").float())
        if not before_step:
            acm.update(targets[:, :2])
    assert not torch.equal(graphs[0], graphs[-1])


@pytest.mark.parametrize("newer_as_negative", [False, True])
@pytest.mark.parametrize("memory_first", [False, True])
@pytest.mark.parametrize("before_step", [False, True])
def test_replayed_images_are_not_counted(benchmark, make_model, newer_as_negative, memory_first, before_step):
    memory = OnlineReplayPlugin(ReservoirBuffer(20), newer_as_negative=newer_as_negative)
    acm = ACMPlugin(count_before_step=before_step)
    train(benchmark.train_stream, make_model(), *((memory, acm) if memory_first else (acm, memory)))
    expected = count(benchmark.train_stream)
    assert torch.equal(acm.acm.state_dict()["hard"], expected.state_dict()["hard"])
    assert torch.equal(acm.acm.matrix(), expected.matrix())


def test_images_of_avalanches_replay_are_not_counted(benchmark, make_model):
    acm = ACMPlugin()
    replay = ReplayPlugin(mem_size=20, storage_policy=ReservoirSamplingBuffer(max_size=20))
    train(benchmark.train_stream, make_model(), acm, replay)
    assert torch.equal(acm.state_dict()["hard"], count(benchmark.train_stream).state_dict()["hard"])


def test_official_starts_and_counts_as_the_authors_program():
    def settings(**given):
        plugin = ACMPlugin(**given)
        return plugin.acm.hard_start, plugin.acm.soft_start, plugin.count_before_step

    assert settings() == (0, 0, False)
    assert settings(preset="official") == (1e-6, 1e-10, True)
    given = {"hard_start": 0.0, "soft_start": 0.0, "count_before_step": False}
    assert settings(preset="official", **given) == (0, 0, False)


def test_without_teacher_experiences_of_any_model_are_unrelated(benchmark):
    plugin = ACMPlugin()
    train(benchmark.train_stream, nn.Sequential(nn.Flatten(), nn.Linear(192, 6)), plugin)
    matrix = plugin.acm.matrix()
    blocks = torch.block_diag(*[torch.ones(2, 2)] * 3).bool()
    assert matrix[~blocks].eq(0).all()
    assert matrix[blocks].gt(0).all()


def test_online_experiences_belong_to_the_one_they_are_part_of(benchmark, make_model):
    agcn, acm = AGCNPlugin(lambda_gph=1.0), ACMPlugin()
    train(split_online_stream(benchmark.train_stream, experience_size=8), make_model(), agcn, acm)
    assert acm.acm.block_sizes == (2, 2, 2)
    assert agcn.teacher.model.n_seen == 4


def test_training_again_goes_on_counting_and_evaluation_does_not(benchmark, make_model):
    acm, first = ACMPlugin(), benchmark.train_stream[0]
    strategy = train([first, first], make_model(), acm)
    strategy.eval(benchmark.test_stream)
    once = count([first])
    assert strategy.model.n_seen == acm.acm.n_seen == 2
    torch.testing.assert_close(acm.acm.matrix(), once.matrix())
    assert acm.acm.state_dict()["hard"].sum() == 2 * once.state_dict()["hard"].sum()


@pytest.mark.parametrize(
    "settings",
    [
        {"graph": "identity"},
        {"graph": "plain"},
        {"cross_blocks": False},
        {"neighbour_weight": 0.9},
        {"preset": "official", "new_threshold": 0.9, "cross_threshold": 0.05},
    ],
    ids=str,
)
def test_settings_reach_the_graph(benchmark, make_model, settings):
    acm = ACMPlugin(**settings)
    model = train(benchmark.train_stream[:2], make_model(), AGCNPlugin(lambda_gph=1.0), acm).model
    settings = {"preset": "paper"} | settings
    settings["preset"] = settings.pop("graph", settings["preset"])
    torch.testing.assert_close(model.adjacency, adjacency(acm.acm, **settings).float())


@pytest.mark.parametrize("beside", [[], [AGCNPlugin()]])
def test_a_model_that_learned_classes_which_were_not_counted_is_rejected(benchmark, make_model, beside):
    model = train(benchmark.train_stream[:1], make_model()).model
    message = "4 classes were seen so far, 2 of them in this experience, but .* has counted 0"
    with pytest.raises(ValueError, match=message):
        train(benchmark.train_stream[1:2], model, *beside, ACMPlugin())


def test_model_without_a_graph_is_rejected(benchmark):
    with pytest.raises(TypeError, match="AGCNModel"):
        train(benchmark.train_stream[:1], nn.Sequential(nn.Flatten(), nn.Linear(192, 6)), AGCNPlugin())
