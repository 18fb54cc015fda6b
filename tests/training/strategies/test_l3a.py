import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from torch.utils.data import TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.models import MultiLabelClassifier, Precomputed, RandomFeatures
from avalanche_agcn.training import L3A
from avalanche_agcn.training.l3a import L3AStatistics

N_CLASSES, WIDTH = 6, 40


def make_data(n, seed):
    generator = torch.Generator().manual_seed(seed)
    targets = (torch.rand(n, N_CLASSES, generator=generator) < 0.3).double()
    targets[torch.arange(n), torch.arange(n) % N_CLASSES] = 1
    patterns = torch.randn(N_CLASSES, 12, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    data = TensorDataset(targets @ patterns + torch.randn(n, 12, generator=generator, dtype=torch.float64))
    data.targets = targets.int()
    return data


@pytest.fixture(scope="module", params=["unlabelled as NaN", "unlabelled as 0"])
def stream(request):
    return multilabel_benchmark(
        make_data(150, 0),
        make_data(60, 1),
        n_experiences=3,
        unlabelled_as_negative=request.param.endswith("0"),
    )


def make_strategy(**settings):
    model = MultiLabelClassifier(RandomFeatures(Precomputed(12), WIDTH), N_CLASSES).double()
    settings = {"evaluator": EvaluationPlugin(), "ridge": 10.0, "threshold": 0.6} | settings
    return L3A(model=model, **settings)


def train(strategy, experiences):
    for experience in experiences:
        strategy.train(experience, eval_streams=[])
    return strategy


def test_logits_are_those_of_the_closed_form(stream):
    strategy = train(make_strategy(train_mb_size=7), stream.train_stream)
    statistics = L3AStatistics(ridge=10.0, threshold=0.6)
    for experience in stream.train_stream:
        x = torch.stack([row[0] for row in experience.dataset])
        own = experience.dataset.targets[:][:, experience.classes_in_this_experience]
        statistics.begin(own.sum(0))
        statistics.update(strategy.model.features(x), own)
    x = torch.stack([row[0] for e in stream.test_stream for row in e.dataset])
    strategy.model.eval()
    scores = strategy.model.features(x) @ statistics.solve()
    torch.testing.assert_close(strategy.model(x).detach(), scores - 0.1, rtol=0, atol=1e-9)


def test_epochs_and_evaluation_in_between_change_nothing(stream):
    once = train(make_strategy(train_mb_size=7), stream.train_stream)
    strategy = make_strategy(train_mb_size=11, train_epochs=2, eval_every=1)
    for experience in stream.train_stream:
        strategy.train(experience, eval_streams=[stream.test_stream])
    for ours, theirs in zip(strategy.model.classifiers(), once.model.classifiers()):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_network_is_not_trained(make_model, benchmark):
    backbone = make_model().backbone
    model = MultiLabelClassifier(RandomFeatures(backbone, 30), N_CLASSES)
    before = {name: tensor.clone() for name, tensor in model.backbone.state_dict().items()}
    strategy = L3A(model=model, evaluator=EvaluationPlugin())
    train(strategy, benchmark.train_stream)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.backbone.state_dict().items())
    assert strategy.model.n_seen == 6


def test_state_resumes_between_experiences(stream):
    strategy = train(make_strategy(seed=0), stream.train_stream[:2])
    resumed = make_strategy(seed=0)
    resumed.collector.load_state_dict(
        {name: tensor.clone() for name, tensor in strategy.collector.state_dict().items()}
    )
    resumed.model.load_state_dict(strategy.model.state_dict())
    for one in (strategy, resumed):
        train(one, stream.train_stream[2:])
    assert torch.equal(strategy.model.classifier.weight, resumed.model.classifier.weight)


def test_model_must_be_linear(make_model):
    with pytest.raises(TypeError, match="L3A needs a linear classifier, not AGCNModel"):
        L3A(model=make_model())
