"""AGCN's losses and teacher (`AGCNPlugin`), and its counts and graph (`ACMPlugin`)."""

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from avalanche.benchmarks import split_online_stream
from avalanche.training import Naive
from avalanche.training.plugins import ReplayPlugin
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from torch import nn

from avalanche_agcn.agcn.correlation import AugmentedCorrelationMatrix
from avalanche_agcn.agcn.graph import adjacency
from avalanche_agcn.training.losses import PartialBCEWithLogitsLoss
from avalanche_agcn.training.plugins import ACMPlugin, AGCNPlugin, OnlineReplayPlugin
from avalanche_agcn.training.storage_policy import ReservoirBuffer
from avalanche_agcn.training.teacher import PseudoLabelPlugin


@pytest.fixture
def train(train, make_model):
    """Train AGCN's model under Avalanche's own strategy."""
    return lambda *plugins, **settings: train(*plugins, **{"kind": Naive, "model": make_model()} | settings)


@pytest.fixture
def record(train, watch):
    """Train with an `AGCNPlugin`, and return what each step computed, of the last experience or of all."""

    def run(plugin, graph="paper", all_experiences=False, **settings):
        def look(strategy):
            return {
                "experience": strategy.experience.current_experience,
                "x": strategy.mb_x,
                "y": strategy.mb_y,
                "logits": strategy.mb_output.detach(),
                "loss": strategy.loss.detach().clone().squeeze(),
                "embeddings": strategy.model.embeddings().detach(),
                "teacher": copy.deepcopy(plugin.teacher.model),
            }

        def gradients(strategy):
            return {name: p.grad.clone() for name, p in strategy.model.named_parameters()}

        recorder = watch(before_backward=look, after_backward=gradients)
        train(plugin, ACMPlugin(graph=graph), recorder, **settings)
        steps = [step | {"gradients": own} for step, own in zip(*recorder.seen.values(), strict=True)]
        return [step for step in steps if all_experiences or step["experience"] == steps[-1]["experience"]]

    return run


@pytest.fixture
def count(rows_of):
    """The matrix of all images of a stream, counted experience by experience."""

    def count(stream, soft_labels=lambda t, images: None):
        acm = AugmentedCorrelationMatrix()
        for t, experience in enumerate(stream):
            images, targets = rows_of(experience)
            acm.begin(2)
            acm.update(targets[:, 2 * t : 2 * t + 2], soft_labels(t, images))
        return acm

    return count


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("gph_reduction", ["mean", "sum"])
def test_loss_is_the_criterion_and_later_the_weighted_sum_of_three(record, reduction, gph_reduction):
    weights = {"lambda_cls": 0.3, "lambda_dst": 0.5, "lambda_gph": 0.7}
    plugin = AGCNPlugin(**weights, reduction=reduction, gph_reduction=gph_reduction)
    for step in record(plugin, all_experiences=True, lr=0.01):
        n_old, n_new, teacher = 2 * step["experience"], 2, step["teacher"]
        own = slice(n_old, n_old + n_new)
        cls = F.binary_cross_entropy_with_logits(step["logits"][:, own], step["y"][:, own])
        if reduction == "sum":
            cls = n_new * cls
        if n_old == 0:
            assert teacher is None
            torch.testing.assert_close(step["loss"], cls)
            continue
        dst = F.binary_cross_entropy_with_logits(step["logits"][:, :n_old], teacher(step["x"]).sigmoid())
        gph = (step["embeddings"][:n_old] - teacher.classifiers().weight).pow(2).mean()
        if reduction == "sum":
            dst = n_old * dst
        if gph_reduction == "sum":
            gph = gph * n_old * 16
        torch.testing.assert_close(step["loss"], 0.3 * cls + 0.5 * dst + 0.7 * gph)
    assert gph > 0


def test_sum_is_over_all_labelled_classes_if_unlabelled_is_negative(zeros, record):
    plugin = AGCNPlugin(lambda_cls=1.0, lambda_dst=0.0, lambda_gph=0.0, reduction="sum")
    for step in record(plugin, stream=zeros.train_stream):
        cells = F.binary_cross_entropy_with_logits(step["logits"], step["y"], reduction="none")
        torch.testing.assert_close(step["loss"], cells.sum(1).mean())


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("pseudo_labels", [False, True])
def test_sum_is_over_the_labelled_cells_of_each_image(benchmark, train, watch, pseudo_labels, replay):
    """Pseudo-labels add cells to images of the stream, replayed images have those of their experience."""
    agcn = AGCNPlugin(lambda_cls=1.0, lambda_dst=0.0, lambda_gph=0.0, reduction="sum")
    others = [PseudoLabelPlugin(threshold=0.5)] if pseudo_labels else []
    others += [OnlineReplayPlugin(ReservoirBuffer(20), batch_size_mem=4)] if replay else []
    steps = watch(before_backward=lambda s: (s.mb_output.detach(), s.mb_y.clone(), s.loss.item()))
    train(
        agcn, ACMPlugin(), *others, steps, stream=benchmark.train_stream, criterion=PartialBCEWithLogitsLoss()
    )
    n_labels = set()
    for logits, targets, loss in steps.seen["before_backward"]:
        targets = targets[:, : logits.shape[1]]
        known = ~targets.isnan()
        cells = F.binary_cross_entropy_with_logits(logits, targets.nan_to_num(0), reduction="none")
        assert loss == pytest.approx(cells[known].sum().item() / len(logits), rel=1e-5)
        n_labels |= set(known.sum(1).tolist())
    assert n_labels == ({2, 4, 6} if pseudo_labels else {2})


@pytest.fixture
def largest_gradients(record):
    """Largest gradient of each step of the second experience, under distillation alone."""

    def run(**settings):
        steps = record(AGCNPlugin(lambda_cls=0.0, lambda_dst=1.0, lambda_gph=0.0), n=2, **settings)
        return [max(g.abs().max() for g in step["gradients"].values()) for step in steps]

    return run


def test_distillation_has_no_gradient_while_the_student_is_the_teacher(largest_gradients):
    assert max(largest_gradients(graph="identity")) < 1e-6
    assert largest_gradients(graph="paper")[-1] > 1e-4  # the student's graph changes


@pytest.mark.parametrize("frozen", [True, False])
def test_teacher_and_student_see_the_same_batch_norm_only_if_it_is_frozen(
    make_model, largest_gradients, frozen
):
    model = make_model(freeze_batchnorm=frozen)
    model.backbone.layers.insert(1, nn.BatchNorm2d(8))
    first = largest_gradients(model=model, graph="identity")[0]
    assert first < 1e-7 if frozen else first > 1e-4


def test_relationship_loss_pulls_old_nodes_only(record):
    def last_distance(steps):
        step = steps[-1]
        return (step["embeddings"][:2] - step["teacher"].classifiers().weight).pow(2).mean()

    # The graph changes with every batch, so the last step is compared with no pull at all.
    pulled, free = (
        record(AGCNPlugin(lambda_cls=0.0, lambda_dst=dst, lambda_gph=gph), n=2, lr=0.3)
        for dst, gph in ((0.0, 10.0), (1e-12, 0.0))
    )
    assert last_distance(pulled) < 0.5 * last_distance(free)
    for step in pulled:  # images have no influence on it
        assert all(name.startswith("gcn") or not g.any() for name, g in step["gradients"].items())


def test_a_step_needs_one_pass_of_the_teachers_backbone_and_of_the_students_gcn(benchmark, train, watch):
    plugin, calls = AGCNPlugin(lambda_gph=1.0), Counter()
    strategy = train(plugin, ACMPlugin(), n=1)

    def count_calls(strategy):
        teacher = plugin.teacher.model
        for name, part in {
            "teacher": teacher.backbone,
            "its gcn": teacher.gcn,
            "gcn": strategy.model.gcn,
        }.items():
            part.register_forward_hook(lambda *_, name=name: calls.update([name]))

    strategy.plugins.insert(0, watch(before_training_exp=count_calls))
    strategy.train(benchmark.train_stream[1])
    n = calls["teacher"]
    assert n == -(-len(benchmark.train_stream[1].dataset) // 8) > 1
    assert calls == {"teacher": n, "its gcn": 1, "gcn": n}  # the teacher's graph does not change


def test_a_loaded_first_experience_has_nothing_of_the_teacher_before(train):
    plugin = AGCNPlugin(lambda_gph=1.0)
    train(plugin, ACMPlugin(), n=2)
    assert plugin.teacher.n_old == 2
    plugin.load_state_dict(AGCNPlugin().state_dict())
    assert (plugin.teacher.model, plugin.teacher.n_old) == (None, 0)


def test_order_of_the_two_plugins_does_not_matter(train, same_weights):
    orders = [AGCNPlugin(lambda_gph=1.0), ACMPlugin()], [ACMPlugin(), AGCNPlugin(lambda_gph=1.0)]
    assert same_weights(*(train(*plugins) for plugins in orders))


@pytest.mark.parametrize("before_step", [False, True])
@pytest.mark.parametrize("preset", ["paper", "official"])
def test_matrix_after_training_equals_a_count_of_the_whole_stream(
    benchmark, train, watch, count, preset, before_step
):
    agcn, acm = AGCNPlugin(lambda_gph=1.0), ACMPlugin(preset=preset, count_before_step=before_step)
    acm.acm.hard_start = acm.acm.soft_start = 0.0
    teachers = watch(after_training_exp=lambda strategy: agcn.teacher.model)
    strategy = train(agcn, acm, teachers)

    @torch.no_grad()
    def soft_labels(t, images):
        if t == 0:
            return None
        logits = teachers.seen["after_training_exp"][t](images)
        return logits.sigmoid() if preset == "paper" else logits.softmax(dim=1)

    expected = count(benchmark.train_stream, soft_labels).matrix()
    torch.testing.assert_close(acm.acm.matrix(), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(strategy.model.adjacency, adjacency(acm.acm, preset).float())


@pytest.mark.parametrize("before_step", [False, True])
def test_graph_of_a_step_has_the_batches_before_it_or_on_request_its_own(train, watch, before_step):
    steps = watch(after_forward=lambda strategy: (strategy.model.adjacency.clone(), strategy.mb_y.clone()))
    train(ACMPlugin(graph="plain", count_before_step=before_step), steps, n=1)
    acm = AugmentedCorrelationMatrix()
    acm.begin(2)
    for graph, targets in steps.seen["after_forward"]:
        if before_step:
            acm.update(targets[:, :2])
        torch.testing.assert_close(graph, adjacency(acm, "plain").float())
        if not before_step:
            acm.update(targets[:, :2])
    assert not torch.equal(steps.seen["after_forward"][0][0], graph)


@pytest.mark.parametrize("memory_first", [False, True])
@pytest.mark.parametrize("before_step", [False, True])
@pytest.mark.parametrize(("stream", "newer"), [("benchmark", False), ("benchmark", True), ("zeros", False)])
def test_replayed_images_are_not_counted(
    request, train, count, buffer_kind, memory_first, before_step, stream, newer
):
    stream = request.getfixturevalue(stream).train_stream
    memory = OnlineReplayPlugin(buffer_kind(20), newer_as_negative=newer)
    acm, expected = ACMPlugin(count_before_step=before_step), count(stream)
    train(*((memory, acm) if memory_first else (acm, memory)), stream=stream)
    assert torch.equal(acm.state_dict()["hard"], expected.state_dict()["hard"])
    assert torch.equal(acm.acm.matrix(), expected.matrix())


def test_images_of_avalanches_replay_or_beside_a_teacher_are_not_counted(benchmark, train, count):
    avalanches = ReplayPlugin(mem_size=20, storage_policy=ReservoirSamplingBuffer(max_size=20))
    for memory in (avalanches, OnlineReplayPlugin(ReservoirBuffer(15))):
        acm = ACMPlugin()
        train(AGCNPlugin(lambda_gph=1.0), acm, memory)
        assert torch.equal(acm.state_dict()["hard"], count(benchmark.train_stream).state_dict()["hard"])


def test_official_starts_and_counts_as_the_authors_program():
    def settings(**given):
        plugin = ACMPlugin(**given)
        return plugin.acm.hard_start, plugin.acm.soft_start, plugin.count_before_step

    assert settings() == (0, 0, False)
    assert settings(preset="official") == (1e-6, 1e-10, True)
    assert settings(preset="official", count_before_step=False) == (1e-6, 1e-10, False)


def test_without_teacher_experiences_of_any_model_are_unrelated(train):
    plugin = ACMPlugin()
    train(plugin, model=nn.Sequential(nn.Flatten(), nn.Linear(192, 6)))
    matrix = plugin.acm.matrix()
    blocks = torch.block_diag(*[torch.ones(2, 2)] * 3).bool()
    assert matrix[~blocks].eq(0).all()
    assert matrix[blocks].gt(0).all()


def test_pieces_of_online_streams_belong_to_their_experience(benchmark, train):
    agcn, acm = AGCNPlugin(lambda_gph=1.0), ACMPlugin()
    train(agcn, acm, stream=split_online_stream(benchmark.train_stream, experience_size=8))
    assert acm.acm.block_sizes == (2, 2, 2)
    assert agcn.teacher.model.n_seen == 4


def test_training_again_continues_the_counts_and_evaluation_does_not(benchmark, train, count):
    acm, first = ACMPlugin(), benchmark.train_stream[0]
    strategy = train(acm, stream=[first, first])
    strategy.eval(benchmark.test_stream)
    once = count([first])
    assert strategy.model.n_seen == acm.acm.n_seen == 2
    torch.testing.assert_close(acm.acm.matrix(), once.matrix())
    assert acm.acm.state_dict()["hard"].sum() == 2 * once.state_dict()["hard"].sum()


@pytest.mark.parametrize("beside", [[], [AGCNPlugin]])
def test_a_model_that_learned_classes_which_were_not_counted_is_rejected(stream, train, beside):
    model = train(stream=stream[:1]).model
    message = "4 classes were seen so far, 2 of them in this experience, but .* has counted 0"
    with pytest.raises(ValueError, match=message):
        train(*[kind() for kind in beside], ACMPlugin(), model=model, stream=stream[1:2])
