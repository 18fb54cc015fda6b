import pytest
import torch
import torch.nn.functional as F
from avalanche.core import SupervisedPlugin

from avalanche_agcn.training.plugins import ConfidencePenaltyPlugin, LwFPlugin


class Losses(SupervisedPlugin):
    def __init__(self):
        super().__init__()
        self.rows = []

    def before_backward(self, strategy, **kwargs):
        self.rows.append((strategy.loss.item(), strategy.mb_x, strategy.mb_output.detach(), strategy.mb_y))


def test_loss_is_that_of_the_authors_program_from_the_second_experience_on(benchmark, make_strategy):
    before, after, plugin = Losses(), Losses(), ConfidencePenaltyPlugin(beta=0.3, alpha=0.4)
    strategy = make_strategy(before, plugin, after)
    strategy.train(benchmark.train_stream[0], eval_streams=[])
    assert [row[0] for row in before.rows] == [row[0] for row in after.rows]
    before.rows, after.rows = [], []
    strategy.train(benchmark.train_stream[1], eval_streams=[])
    for (classification, *_), (total, x, logits, _) in zip(before.rows, after.rows, strict=True):
        with torch.no_grad():
            soft_labels = plugin.teacher.model(x)[:, :2].sigmoid()
        p = logits.sigmoid()
        distillation = F.binary_cross_entropy(p[:, :2], soft_labels)
        entropy = -(p * p.log()).sum(1).mean()
        expected = 0.4 * classification + 0.6 * distillation - 0.3 * entropy
        assert total == pytest.approx(expected.item(), rel=1e-5)


def test_penalty_makes_outputs_less_confident(benchmark, make_strategy):
    x = torch.stack([benchmark.train_stream[1].dataset[i][0] for i in range(10)])
    entropies = []
    for beta in (0.0, 2.0):
        strategy = make_strategy(ConfidencePenaltyPlugin(beta=beta, alpha=1.0), lr=0.3, train_epochs=5)
        for experience in benchmark.train_stream[:2]:
            strategy.train(experience, eval_streams=[])
        with torch.no_grad():
            p = strategy.model(x).sigmoid()
        entropies.append(-(p * p.log()).sum(1).mean())
    assert entropies[1] > entropies[0] + 0.1


def test_teacher_can_be_shared(benchmark, make_strategy):
    lwf = LwFPlugin()
    plugin = ConfidencePenaltyPlugin(teacher=lwf.teacher)
    strategy = make_strategy(lwf, plugin)
    for experience in benchmark.train_stream[:2]:
        strategy.train(experience, eval_streams=[])
    assert plugin.teacher.n_old == 2
    assert plugin.state_dict() == {}


@pytest.mark.parametrize(("setting", "value"), [("beta", -0.1), ("alpha", 1.1), ("alpha", -0.1)])
def test_wrong_settings_are_rejected(setting, value):
    with pytest.raises(ValueError, match=f"{setting} must be"):
        ConfidencePenaltyPlugin(**{setting: value})
