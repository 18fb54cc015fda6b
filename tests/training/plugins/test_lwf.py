import pytest
import torch

from avalanche_agcn.training.plugins.distillation import LwFPlugin


def test_teacher_is_the_model_before_the_experience(benchmark, make_strategy):
    plugin = LwFPlugin()
    strategy = make_strategy(plugin)
    strategy.train(benchmark.train_stream[0], eval_streams=[])
    assert plugin.teacher.model is None
    before = {name: tensor.clone() for name, tensor in strategy.model.named_parameters()}
    strategy.train(benchmark.train_stream[1], eval_streams=[])
    assert plugin.teacher.n_old == 2
    for name, parameter in plugin.teacher.model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert not parameter.requires_grad
        assert not torch.equal(parameter, dict(strategy.model.named_parameters())[name])


def test_distillation_keeps_old_logits_nearer(benchmark, make_strategy):
    x = torch.stack([benchmark.test_stream[0].dataset[i][0] for i in range(10)])
    moved = []
    for weight in (0.0, 5.0):
        plugin = LwFPlugin(alpha=weight)
        strategy = make_strategy(plugin, lr=0.3, train_epochs=8)
        for experience in benchmark.train_stream[:2]:
            strategy.train(experience, eval_streams=[])
        with torch.no_grad():
            moved.append((strategy.model(x)[:, :2] - plugin.teacher.model(x)[:, :2]).abs().mean())
    assert moved[1] < 0.5 * moved[0]


def test_state_resumes_in_the_midst_of_an_experience(benchmark, make_strategy, tmp_path):
    plugin = LwFPlugin(alpha=3.0)
    strategy = make_strategy(plugin, seed=0)
    for experience in benchmark.train_stream[:2]:
        strategy.train(experience, eval_streams=[])
    torch.save([plugin.state_dict(), strategy.model.state_dict()], tmp_path / "state.pt")
    strategy.train(benchmark.train_stream[1], eval_streams=[])

    again = LwFPlugin(alpha=3.0)
    resumed = make_strategy(again, seed=0)
    of_plugin, of_model = torch.load(tmp_path / "state.pt", weights_only=True)
    again.load_state_dict(of_plugin)
    resumed.model.load_state_dict(of_model)
    resumed.train(benchmark.train_stream[1], eval_streams=[])
    assert torch.equal(resumed.model.classifier.weight, strategy.model.classifier.weight)
    assert again.state_dict().keys() == plugin.state_dict().keys()


@pytest.mark.parametrize(("setting", "value"), [("alpha", -1.0), ("temperature", 0.0)])
def test_wrong_settings_are_refused(setting, value):
    with pytest.raises(ValueError, match=setting):
        LwFPlugin(**{setting: value})
