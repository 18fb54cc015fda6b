import pytest
import torch
from torch import nn

from avalanche_agcn.models.forward import OutputRecorder, evaluation_mode, frozen_copy


def test_evaluation_mode_and_a_frozen_copy_leave_the_model_as_it_was():
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))
    model[1].eval()
    with pytest.raises(ZeroDivisionError), evaluation_mode(model):
        _ = 1 / sum(module.training for module in model.modules())  # none is in training mode
    copied = frozen_copy(model)
    assert not any(module.training for module in copied.modules())
    assert not any(parameter.requires_grad for parameter in copied.parameters())
    assert [module.training for module in model.modules()] == [True, True, False]
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
