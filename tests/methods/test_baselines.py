"""Each baseline is Fine-Tuning with its plugins, and Fine-Tuning is Naive with the partial loss."""

import pytest
import torch
from avalanche.training import Naive
from torch.nn.functional import binary_cross_entropy, binary_cross_entropy_with_logits
from torch.utils.data import TensorDataset

from avalanche_agcn import training
from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.methods.multi_task import multi_task_experience
from avalanche_agcn.methods.replay import Replay
from avalanche_agcn.models import MultiLabelClassifier
from avalanche_agcn.training import AGCN, CSC, FineTuning, MultiTask, plugins, storage_policy

ALPHA, BETA, THRESHOLD = 0.3, 0.2, 0.4  # of CSC


def make_memory(kind, **settings):
    return getattr(storage_policy, kind)(12, seed=1, **settings)


def replay(kind, rho=None, **settings):
    buffer = make_memory(kind) if rho is None else make_memory(kind, rho=rho)
    return plugins.OnlineReplayPlugin(buffer, **settings)


BASELINES = {  # settings, and the plugins that have them
    "AGEM": (
        {"sample_size": 5},
        lambda **own: [plugins.AGEMPlugin(make_memory("ExperienceReservoirBuffer"), **own)],
    ),
    "EWC": ({"ewc_lambda": 3.0, "fisher_images": 5}, lambda **own: [plugins.EWCPlugin(seed=1, **own)]),
    "LwF": ({"alpha": 2.0, "temperature": 3.0}, lambda **own: [plugins.LwFPlugin(**own)]),
    "ER": ({"batch_size_mem": 5}, lambda **own: [replay("ReservoirBuffer", **own)]),
    "PRS": ({"rho": 0.5}, lambda **own: [replay("PRSBuffer", **own)]),
    "OCDM": ({"rho": 0.5, "newer_as_negative": True}, lambda **own: [replay("OCDMBuffer", **own)]),
    "SCR": (
        {"batch_size_mem": 6, "contrast_weight": 0.5},
        lambda batch_size_mem, contrast_weight: [
            plugins.ContrastivePlugin(weight=contrast_weight),
            replay("ReservoirBuffer", batch_size_mem=batch_size_mem, views=2),
        ],
    ),
}


@pytest.mark.parametrize("name", BASELINES)
def test_baseline_is_fine_tuning_with_its_plugins(name, train, same_weights):
    settings, make_plugins = BASELINES[name]
    memory = {} if name in ("EWC", "LwF") else {"mem_size": 12}
    ours = train(kind=getattr(training, name), seed=1, **settings, **memory)
    assert same_weights(ours, train(*make_plugins(**settings), seed=1))
    assert not same_weights(ours, train(seed=1))


@pytest.mark.parametrize("name", [method.strategy for method in METHODS.values()])
def test_the_callers_plugins_are_used_and_their_list_is_not_changed(name, make_model, make_strategy):
    kind, model, plugin = getattr(training, name), make_model(), plugins.LwFPlugin()
    given, model = [plugin], model if name in ("AGCN", "CSC") else MultiLabelClassifier(model.backbone, 6)
    strategy = make_strategy(kind=kind, model=model, plugins=given)
    assert given == [plugin]
    assert plugin in strategy.plugins
    assert kind in (FineTuning, MultiTask) or len(strategy.plugins) > 2  # its own, and the evaluator


@pytest.mark.parametrize("name", ["FineTuning", "AGCN", "CSC", "SCR", "StreamingRidge", "L3A", "AGEM", "LwF"])
def test_a_compiled_model_is_trained_like_the_model_itself(name, benchmark, make_model, make_strategy):
    states = []
    for compiled in (False, True):
        model = make_model()
        if name not in ("AGCN", "CSC"):
            model = MultiLabelClassifier(model.backbone, 6)
        used = torch.compile(model, backend="eager") if compiled else model
        memory = {"mem_size": 12} if name in ("SCR", "AGEM") else {}
        strategy = make_strategy(kind=getattr(training, name), model=used, lr=1e-4, **memory)
        for experience in benchmark.train_stream[:2]:
            strategy.train(experience)
        assert all(parameter.isfinite().all() for parameter in model.parameters())
        states.append(model.state_dict())
    assert states[0].keys() == states[1].keys()
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=0, atol=1e-6)
    torch.compiler.reset()


@pytest.mark.parametrize("name", ["AGCN", "CSC"])
def test_methods_with_a_graph_train_in_float64_if_it_is_torchs_default(name, make_model, make_strategy):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        data = TensorDataset(torch.rand(30, 3, 9, 9))
        data.targets = torch.eye(6).repeat(5, 1)
        benchmark = multilabel_benchmark(data, data, n_experiences=3)
        model = make_model()
        strategy = make_strategy(kind=getattr(training, name), model=model, lr=1e-4)
        for experience in benchmark.train_stream[:2]:
            strategy.train(experience)
    finally:
        torch.set_default_dtype(before)
    assert model.word_vectors.dtype == model.adjacency.dtype == torch.float64
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_fine_tuning_is_naive_training_with_the_partial_loss(train, same_weights):
    ours, naive = (train(kind=kind, loader={"shuffle": False}) for kind in (FineTuning, Naive))
    assert same_weights(ours, naive)


def test_fine_tuning_learns_the_last_experience(benchmark, make_model, train, rows_of):
    model = train(model=MultiLabelClassifier(make_model().backbone, 6), train_epochs=5).model
    images, targets = rows_of(benchmark.train_stream[2])
    assert ((model(images)[:, 4:] > 0) == targets[:, 4:].bool()).float().mean() > 0.8


def test_fine_tuning_trains_old_classes_as_negatives_where_unlabelled_is_0(zeros, train):
    strategy = train(stream=zeros.train_stream[:1])
    before = strategy.model.classifier.bias.detach().clone()
    strategy.train(zeros.train_stream[1])
    moved = strategy.model.classifier.bias.detach() - before
    assert (moved[:2] < 0).all()
    assert (moved[4:] == 0).all()  # not seen yet


@pytest.mark.parametrize(("mem_size", "train_mb_size"), [(10, 8), (1, 1)])
def test_replay_takes_any_memory_and_any_model(mem_size, train_mb_size, make_model, train):
    """AGCN's model without AGCN's losses; also with batches and a memory of one image."""
    settings = {"storage_policy": storage_policy.PRSBuffer(mem_size), "train_mb_size": train_mb_size}
    strategy = train(kind=Replay, model=make_model(), **settings)
    assert len(strategy.replay.storage_policy) == mem_size
    assert strategy.model(torch.zeros(2, 3, 8, 8)).shape == (2, 6)
    assert all(parameter.isfinite().all() for parameter in strategy.model.parameters())


def test_csc_is_the_sum_of_its_parts_in_plain_formulas_with_one_pass_of_the_teacher(train, make_model, watch):
    passes = []

    def count_passes(strategy):
        if strategy.agcn.teacher.n_old:
            strategy.agcn.teacher.model.backbone.register_forward_hook(lambda *_: passes.append(1))

    def look(strategy):
        teacher, parts = strategy.agcn.teacher, (strategy.mb_y, strategy.mb_output, strategy.loss.squeeze())
        parts = [part.detach().clone() for part in parts]
        return *parts, teacher.logits(strategy).clone() if teacher.n_old else None

    steps = watch(before_training_exp=count_passes, after_backward=look)
    settings = {"alpha": ALPHA, "beta": BETA, "threshold": THRESHOLD}
    strategy = train(steps, kind=CSC, model=make_model(), **settings)
    n_later = 0
    for targets, logits, loss, teacher in steps.seen["after_backward"]:
        expected = binary_cross_entropy_with_logits(logits, targets[:, : logits.shape[1]])
        if teacher is not None:
            n_later, n_old, p = n_later + 1, teacher.shape[1], logits.sigmoid()
            torch.testing.assert_close(targets[:, :n_old], (teacher.sigmoid() > THRESHOLD).float())
            distillation = binary_cross_entropy(p[:, :n_old], teacher.sigmoid())
            negative_entropy = (p * p.log()).sum() / len(p)
            expected = ALPHA * expected + (1 - ALPHA) * distillation + BETA * negative_entropy
        torch.testing.assert_close(loss, expected)
    assert len(passes) == n_later > 2
    matrix = strategy.acm.acm.matrix()  # relations between experiences too
    assert matrix.shape == (6, 6)
    assert (matrix[:4, 4:] > 0).all()
    assert (matrix[4:, :4] > 0).all()
    assert strategy.model.n_seen == 6


def test_a_model_without_a_graph_is_named(train):
    for kind, own in ((CSC, []), (AGCN, []), (FineTuning, [plugins.AGCNPlugin()])):
        with pytest.raises(TypeError, match="of class AGCNModel, not MultiLabelClassifier: AGCNModel"):
            train(*own, kind=kind)


def test_multi_task_trains_on_each_image_once_with_all_labels_and_evaluates_as_others(
    benchmark, train, watch
):
    seen = watch(after_forward=lambda s: s.mb_y, after_eval_forward=lambda s: s.mb_output)
    strategy = train(seen, kind=MultiTask, stream=[benchmark])
    targets = torch.cat(seen.seen["after_forward"])
    assert sorted(targets.tolist()) == sorted(benchmark.complete_train_dataset.targets[:].tolist())
    strategy.eval(benchmark.test_stream)
    evaluated = seen.seen["after_eval_forward"]
    assert sum(map(len, evaluated)) == sum(len(e.dataset) for e in benchmark.test_stream)
    assert {logits.shape[1] for logits in evaluated} == {6}


def test_multi_task_takes_its_experience_made_by_hand_but_no_partial_labels(benchmark, train, same_weights):
    experience, ours = multi_task_experience(benchmark), train(kind=MultiTask, stream=[benchmark])
    assert experience.classes_seen_so_far == experience.classes_in_this_experience == list(range(6))
    assert experience.previous_classes == experience.future_classes == []
    for given in (experience, [experience]):
        assert same_weights(ours, train(kind=MultiTask, stream=[given]))
    for partial in (benchmark.train_stream, benchmark.train_stream[0]):
        with pytest.raises(ValueError, match=r"call train\(benchmark\)"):
            train(kind=MultiTask, stream=[partial])
