import pytest
import torch
from avalanche.benchmarks import split_online_stream
from avalanche.core import SupervisedPlugin

from avalanche_agcn.training.plugins.replay import AGEMPlugin
from avalanche_agcn.training.storage_policy import ExperienceReservoirBuffer


def dot(a, b):
    return sum((x.double() * y.double()).sum() for x, y in zip(a, b))


def test_pieces_of_an_online_stream_are_rejected(benchmark, make_strategy):
    strategy = make_strategy(AGEMPlugin(ExperienceReservoirBuffer(9)))
    with pytest.raises(ValueError, match=r"A-GEM sums up each experience .* piece of one, of 8 images"):
        strategy.train(split_online_stream(benchmark.train_stream, experience_size=8), eval_streams=[])


class Checker(SupervisedPlugin):
    """Stands behind A-GEM and compares the gradient with the reference."""

    def __init__(self, agem):
        super().__init__()
        self.agem, self.along, self.rows, self.references = agem, [], [], []

    def after_backward(self, strategy, **kwargs):
        self.rows.append(len(strategy.mb_output))
        self.references.append(self.agem._reference is not None)
        if self.agem._reference is not None:
            gradients = [p.grad for p in strategy.model.parameters()]
            size = dot(gradients, gradients).sqrt() * dot(self.agem._reference, self.agem._reference).sqrt()
            self.along.append(float(dot(gradients, self.agem._reference) / size))


@pytest.fixture
def train(benchmark, make_strategy):
    def run(mem_size, sample_size=None):
        plugin = AGEMPlugin(ExperienceReservoirBuffer(mem_size), sample_size=sample_size)
        checker = Checker(plugin)
        strategy = make_strategy(plugin, checker)
        for experience in benchmark.train_stream:
            strategy.train(experience, eval_streams=[])
        return checker, strategy.model

    return run


def test_no_step_goes_against_the_memory(train):
    checker, _ = train(30)
    assert len(checker.along) > 5
    assert min(checker.along) > -1e-5
    assert any(abs(along) < 1e-5 for along in checker.along)  # some were projected
    assert any(along > 1e-3 for along in checker.along)  # and some left alone


def test_reference_is_of_earlier_experiences_and_not_in_the_batch(train, benchmark):
    checker, _ = train(30, sample_size=16)
    n_first = -(-len(benchmark.train_stream[0].dataset) // 8)
    assert checker.references == [False] * n_first + [True] * (len(checker.references) - n_first)
    assert max(checker.rows) == 8
    assert checker.agem.storage_policy.keys[:, 0].bincount().tolist() == [10, 10, 10]


def test_memory_of_none_trains_like_fine_tuning(train, benchmark, make_strategy):
    checker, model = train(0)
    assert not any(checker.references)
    plain = make_strategy()
    for experience in benchmark.train_stream:
        plain.train(experience, eval_streams=[])
    assert torch.equal(plain.model.classifier.weight, model.classifier.weight)
