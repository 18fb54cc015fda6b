import pytest
import torch
from torch import nn

from avalanche_agcn.models.forward import OutputRecorder, evaluation_mode, frozen_copy


def test_evaluation_mode_gives_each_module_its_own_mode_back():
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))
    model[1].eval()
    with pytest.raises(ZeroDivisionError), evaluation_mode(model):
        _ = 1 / sum(module.training for module in model.modules())  # none is in training mode
    assert [module.training for module in model.modules()] == [True, True, False]


def test_frozen_copy_leaves_the_model_trainable():
    model = nn.Linear(2, 2).train()
    copied = frozen_copy(model)
    assert not copied.training
    assert not any(parameter.requires_grad for parameter in copied.parameters())
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_recorder_returns_the_last_output_and_leaves_no_hook():
    recorder, layer = OutputRecorder(), nn.Linear(2, 2)
    recorder.start(layer)
    recorder.start(layer)  # again, without a stop in between
    layer(torch.zeros(1, 2))
    last = layer(torch.ones(1, 2))
    assert recorder.stop() is last
    assert recorder.stop() is None
    assert not layer._forward_hooks
