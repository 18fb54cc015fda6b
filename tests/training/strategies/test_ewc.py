from avalanche_agcn.training import EWC, FineTuning
from avalanche_agcn.training.plugins import EWCPlugin


def test_ewc_is_fine_tuning_with_its_plugin(run_stream, same_weights):
    ours = run_stream(EWC, ewc_lambda=3.0, fisher_images=5, seed=1)
    parts = run_stream(FineTuning, plugins=[EWCPlugin(ewc_lambda=3.0, fisher_images=5, seed=1)])
    assert same_weights(ours, parts)
    assert not same_weights(ours, run_stream(FineTuning))


def test_ewc_does_not_change_the_callers_plugins(run_stream):
    plugins = []
    strategy = run_stream(EWC, plugins=plugins, ewc_lambda=3.0, fisher_images=5, seed=1)
    assert plugins == []
    assert strategy.ewc in strategy.plugins
