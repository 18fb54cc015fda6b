import pytest
import torch
from avalanche.benchmarks import split_online_stream
from avalanche.training.plugins import EWCPlugin as AvalancheEWC
from torch import nn

from avalanche_agcn.methods.ewc import EWCPlugin, fisher_diagonal
from avalanche_agcn.training import PartialBCEWithLogitsLoss


def test_avalanches_importance_is_this_fisher_for_batches_of_one_only(benchmark, make_strategy):
    strategy, dataset = make_strategy(), benchmark.train_stream[0].dataset.eval()
    images = [(dataset[i][0][None], dataset[i][1][None]) for i in range(len(dataset))]
    ours = fisher_diagonal(strategy.model, PartialBCEWithLogitsLoss(), images)["backbone.layers.0.weight"]
    theirs = [
        AvalancheEWC(1.0)
        .compute_importances(
            strategy.model, PartialBCEWithLogitsLoss(), strategy.optimizer, dataset, "cpu", batch_size
        )["backbone.layers.0.weight"]
        .data
        for batch_size in (1, len(dataset))
    ]
    torch.testing.assert_close(ours, theirs[0])
    assert theirs[1].sum() < 0.7 * ours.sum()


def test_a_loaded_state_follows_the_model_to_its_device():
    """The meta device stands for one that is not here: it, too, rejects tensors of the processor."""
    model, plugin, loaded = nn.Linear(3, 2), EWCPlugin(ewc_lambda=1.0), EWCPlugin(ewc_lambda=1.0)
    plugin.add(
        {name: torch.ones_like(p) for name, p in model.named_parameters()}, dict(model.named_parameters())
    )
    elsewhere = nn.Linear(3, 2, device="meta")
    fisher = {name: torch.ones_like(p) for name, p in elsewhere.named_parameters()}
    loaded.load_state_dict(plugin.state_dict())
    assert loaded.penalty(elsewhere).device.type == "meta"
    loaded.load_state_dict(plugin.state_dict())
    loaded.add(fisher, dict(elsewhere.named_parameters()))
    assert {tensor.device.type for tensor in (*loaded.fisher.values(), *loaded.centre.values())} == {"meta"}


def test_a_parameter_without_dimensions_follows_the_model_to_its_device():
    plugin = EWCPlugin(ewc_lambda=1.0)
    plugin.add({"scale": torch.ones(())}, {"scale": torch.zeros(())})
    elsewhere = nn.Module()
    elsewhere.scale = nn.Parameter(torch.zeros((), device="meta"))
    assert plugin.penalty(elsewhere).device.type == "meta"


def test_pieces_of_an_online_stream_are_rejected(benchmark, train):
    pieces = split_online_stream(benchmark.train_stream, experience_size=8)
    with pytest.raises(ValueError, match=r"EWC sums up each experience .* piece of one, of 8 images"):
        train(EWCPlugin(ewc_lambda=1.0), stream=pieces)


def test_one_parabola_equals_the_sum_over_experiences():
    torch.manual_seed(0)
    model, plugin = nn.Linear(3, 2).double(), EWCPlugin(ewc_lambda=1.0)
    pairs = []
    for _ in range(4):
        fisher = {name: torch.rand_like(p).sub(0.3).clamp(min=0) for name, p in model.named_parameters()}
        optimum = {name: torch.randn_like(p) for name, p in model.named_parameters()}
        plugin.add(fisher, optimum)
        pairs.append((fisher, optimum))
    ours = plugin.penalty(model)
    literal = sum((f[n] * (p - o[n]) ** 2).sum() for f, o in pairs for n, p in model.named_parameters())
    torch.testing.assert_close(ours, literal)
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in (ours, literal)]
    for a, b in zip(*gradients):
        torch.testing.assert_close(a, b)


@pytest.fixture
def train_ewc(train):
    def run(ewc_lambda, n=3, **settings):
        plugin = EWCPlugin(ewc_lambda=ewc_lambda, **settings)
        return plugin, train(plugin, n=n, lr=0.3, train_epochs=8).model

    return run


def test_weights_that_mattered_to_one_experience_only_have_no_gradient_there():
    """A rounding error of the centre would be a gradient, and Adam's step does not depend on its size."""
    torch.manual_seed(0)
    plugin, before, after = EWCPlugin(ewc_lambda=1.0), torch.randn(1000), torch.randn(1000)
    plugin.add({"w": torch.zeros(1000)}, {"w": before})
    plugin.add({"w": torch.rand(1000)}, {"w": after})
    assert torch.equal(plugin.centre["w"], after)


def test_fisher_in_the_loop_is_that_of_the_experience(train_ewc, benchmark):
    plugin, model = train_ewc(1.0, n=1)
    images = [(x[None], y[None]) for x, y, _ in benchmark.train_stream[0].dataset.eval()]
    expected = fisher_diagonal(model, PartialBCEWithLogitsLoss(), images)
    for name, fisher in plugin.fisher.items():
        torch.testing.assert_close(fisher, expected[name])
    assert (plugin.fisher["classifier.weight"][2:] == 0).all()  # classes not seen yet are free
    assert (plugin.fisher["classifier.weight"][:2] > 0).any()


def test_strong_penalty_holds_important_parameters(train_ewc):
    moved = []
    for ewc_lambda in (0.0, 200.0):
        first, _ = train_ewc(ewc_lambda, n=1)
        _, model = train_ewc(ewc_lambda, n=2)
        moved.append(first.penalty(model).item())
    assert 0 < moved[1] < 0.5 * moved[0]


def test_fewer_fisher_images_are_drawn_by_the_seed(train_ewc):
    plugins = [train_ewc(1.0, n=1, fisher_images=3, seed=seed)[0] for seed in (0, 0, 1)]
    values = [plugin.fisher["classifier.bias"] for plugin in plugins]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])


def test_state_gives_the_same_penalty(train_ewc, tmp_path):
    plugin, model = train_ewc(1.0)
    torch.save(plugin.state_dict(), tmp_path / "ewc.pt")
    again = EWCPlugin(ewc_lambda=1.0)
    again.load_state_dict(torch.load(tmp_path / "ewc.pt", weights_only=True))
    with torch.no_grad():
        model.classifier.weight += 1
    torch.testing.assert_close(again.penalty(model), plugin.penalty(model))
