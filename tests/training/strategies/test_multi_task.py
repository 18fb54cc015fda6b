import pytest
import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin

from avalanche_agcn.models import MultiLabelClassifier
from avalanche_agcn.training import MultiTask
from avalanche_agcn.training.strategies import multi_task_experience


class Targets(SupervisedPlugin):
    def __init__(self):
        super().__init__()
        self.batches, self.evaluated = [], []

    def after_forward(self, strategy, **kwargs):
        self.batches.append(strategy.mb_y)

    def after_eval_forward(self, strategy, **kwargs):
        self.evaluated.append(strategy.mb_output)


@pytest.fixture
def make_strategy(benchmark, make_model):
    def make(*plugins, **settings):
        model = MultiLabelClassifier(make_model().backbone, benchmark.n_classes)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return MultiTask(
            model=model, optimizer=optimizer, plugins=plugins, evaluator=EvaluationPlugin(), **settings
        )

    return make


def test_every_image_is_trained_on_once_with_all_its_labels(benchmark, make_strategy):
    targets = Targets()
    strategy = make_strategy(targets)
    strategy.train(benchmark)
    seen = torch.cat(targets.batches)
    assert not seen.isnan().any()
    complete = benchmark.complete_train_dataset.targets[:]
    assert sorted(seen.tolist()) == sorted(complete.tolist())
    assert strategy.model.n_seen == benchmark.n_classes


def test_evaluation_works_as_for_the_others(benchmark, make_strategy):
    targets = Targets()
    strategy = make_strategy(targets)
    strategy.train(benchmark)
    strategy.eval(benchmark.test_stream)
    assert sum(map(len, targets.evaluated)) == sum(len(e.dataset) for e in benchmark.test_stream)
    assert {logits.shape[1] for logits in targets.evaluated} == {6}


def test_experience_can_be_made_and_given_by_hand(benchmark, make_strategy):
    experience = multi_task_experience(benchmark)
    assert experience.classes_seen_so_far == experience.classes_in_this_experience == list(range(6))
    assert experience.previous_classes == experience.future_classes == []
    weights = []
    for given in (benchmark, experience, [experience]):
        strategy = make_strategy()
        torch.manual_seed(0)
        strategy.train(given)
        weights.append(strategy.model.classifier.weight)
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("part", [lambda b: b.train_stream, lambda b: b.train_stream[0]])
def test_partial_labels_are_rejected(benchmark, make_strategy, part):
    with pytest.raises(ValueError, match=r"call train\(benchmark\)"):
        make_strategy().train(part(benchmark))
