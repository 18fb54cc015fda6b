from avalanche_agcn.training import FineTuning, LwF
from avalanche_agcn.training.plugins import LwFPlugin


def test_lwf_is_fine_tuning_with_its_plugin(run_stream, same_weights):
    ours = run_stream(LwF, alpha=2.0, temperature=3.0)
    parts = run_stream(FineTuning, plugins=[LwFPlugin(alpha=2.0, temperature=3.0)])
    assert same_weights(ours, parts)
    assert not same_weights(ours, run_stream(FineTuning))


def test_lwf_does_not_change_the_callers_plugins(run_stream):
    plugins = []
    strategy = run_stream(LwF, plugins=plugins, alpha=2.0, temperature=3.0)
    assert plugins == []
    assert strategy.lwf in strategy.plugins
