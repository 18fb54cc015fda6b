import pytest
import torch
from avalanche.core import SupervisedPlugin
from torch.nn.functional import binary_cross_entropy, binary_cross_entropy_with_logits

from avalanche_agcn.models import MultiLabelClassifier
from avalanche_agcn.training import CSC

ALPHA, BETA, THRESHOLD = 0.3, 0.2, 0.4


class Watch(SupervisedPlugin):
    """Each step of the later experiences: images, targets, logits, loss, and the teacher's logits."""

    def __init__(self):
        super().__init__()
        self.steps, self.passes = [], []

    def before_training_exp(self, strategy, **kwargs):
        if strategy.agcn.teacher.n_old:
            strategy.agcn.teacher.model.backbone.register_forward_hook(lambda *_: self.passes.append(1))

    def after_backward(self, strategy, **kwargs):
        n_old = strategy.agcn.teacher.n_old
        if n_old:
            teacher = strategy.agcn.teacher.logits(strategy)
            parts = (strategy.mb_y, strategy.mb_output, strategy.loss, teacher)
            self.steps.append([part.detach().clone() for part in parts])


@pytest.fixture
def trained(run_stream, make_model):
    watch = Watch()
    settings = {"alpha": ALPHA, "beta": BETA, "threshold": THRESHOLD}
    return run_stream(CSC, model=make_model(), plugins=[watch], **settings), watch


def test_loss_is_the_sum_of_its_parts_in_plain_formulas(trained):
    _, watch = trained
    assert watch.steps
    for targets, logits, loss, teacher in watch.steps:
        n_old, n_seen = teacher.shape[1], logits.shape[1]
        torch.testing.assert_close(targets[:, :n_old], (teacher.sigmoid() > THRESHOLD).float())
        criterion = binary_cross_entropy_with_logits(logits, targets[:, :n_seen])
        distillation = binary_cross_entropy(logits[:, :n_old].sigmoid(), teacher.sigmoid())
        p = logits.sigmoid()
        penalty = (p * p.log()).sum() / len(p)
        torch.testing.assert_close(
            loss.squeeze(), ALPHA * criterion + (1 - ALPHA) * distillation + BETA * penalty
        )


def test_teacher_is_asked_once_a_step(trained):
    _, watch = trained
    assert len(watch.passes) == len(watch.steps) > 2


def test_graph_has_all_classes_and_relations_between_experiences(trained):
    strategy, _ = trained
    matrix = strategy.acm.acm.matrix()
    assert matrix.shape == (6, 6)
    assert (matrix[:4, 4:] > 0).all()
    assert (matrix[4:, :4] > 0).all()
    assert strategy.model.n_seen == 6


def test_a_model_without_a_graph_is_named(run_stream, make_model):
    with pytest.raises(TypeError, match="needs a model with a label graph, not MultiLabelClassifier"):
        run_stream(CSC, model=MultiLabelClassifier(make_model().backbone, 6))
