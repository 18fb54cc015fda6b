from types import SimpleNamespace

import pytest
import torch

from avalanche_agcn.models.backbones import Precomputed
from avalanche_agcn.models.linear import LogitRefinement, MultiLabelClassifier


def make_model(n_classes=5):
    return MultiLabelClassifier(Precomputed(4), n_classes)


def seen(n):
    return SimpleNamespace(classes_seen_so_far=list(range(n)))


def test_all_classes_have_logits_before_the_first_experience_and_the_first_classifiers_can_be_replaced():
    model, x = make_model(), torch.randn(2, 4)
    every = model(x)
    assert every.shape == (2, 5)
    model.train().adaptation(seen(2))
    assert torch.equal(model(x), every[:, :2])
    model, weight, bias = make_model(), torch.randn(2, 4, dtype=torch.float64), torch.randn(2)
    rest = model.classifier.weight[2:].detach().clone()
    model.set_classifiers(weight, bias)
    assert torch.equal(model.classifiers().weight, torch.cat([weight.float(), rest]))
    assert torch.equal(model.classifiers().bias[:2], bias)


def test_state_has_the_classes_seen_and_the_refinement():
    model, x = make_model(), torch.randn(2, 4)
    model.train().adaptation(seen(3))
    for refinement in (None, LogitRefinement(torch.randn(3), torch.rand(3), torch.rand(3, 3))):
        model.set_classifiers(torch.randn(3, 4), torch.randn(3), refinement)
        other = make_model()
        other.load_state_dict(model.state_dict())
        assert other.n_seen == 3
        assert torch.equal(other(x), model(x))


def test_refinement_equals_its_formula():
    origin, unit, gain = torch.randn(3), torch.tensor([0.5, 2.0, 0.0]), torch.rand(3, 3)
    logits = torch.randn(4, 3)
    expected = logits.clone()
    for image in range(4):
        for i in range(3):
            for j in range(2):  # a unit of 0 leaves class 2 out
                shown = ((logits[image, j] - origin[j]) / unit[j]).clamp(0, 1)
                expected[image, i] += unit[i] * gain[i, j] * shown
    torch.testing.assert_close(LogitRefinement(origin, unit, gain)(logits), expected)


def test_classes_that_do_not_fit_are_rejected():
    with pytest.raises(ValueError, match="6 classes so far, but the model was made for 5"):
        make_model().adaptation(seen(6))
    with pytest.raises(ValueError, match=r"\[1, 3\]"):
        make_model().adaptation(SimpleNamespace(classes_seen_so_far=[3, 1]))


def test_added_classes_leave_the_others_to_the_last_bit_and_draw_nothing_from_the_global_generator():
    model, x = make_model(3), torch.randn(7, 4)
    model.train().adaptation(seen(3))
    before = model(x)
    before.sum().backward()
    gradient, state = model.classifier.weight.grad, torch.get_rng_state()
    for n_new in (2, 4):
        model.add_classes(n_new, torch.Generator().manual_seed(n_new))
    assert torch.equal(torch.get_rng_state(), state)
    assert model.classifier.weight.shape == (9, 4)
    assert model.classifier.weight.abs().max() <= 0.5  # 1/√4, as in a new layer
    after = model(x)
    assert torch.equal(after, before)
    assert after.is_contiguous()  # rows that are not in use are not even computed
    after.sum().backward()
    assert torch.equal(model.classifier.weight.grad[:3], gradient)
    model.adaptation(seen(6))
    torch.testing.assert_close(model(x), torch.nn.functional.linear(x, *model.classifiers()))
