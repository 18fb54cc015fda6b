from avalanche_agcn.training import PRS, FineTuning
from avalanche_agcn.training.plugins import OnlineReplayPlugin
from avalanche_agcn.training.storage import PRSBuffer


def test_prs_is_fine_tuning_with_its_plugin(run_stream, same_weights):
    ours = run_stream(PRS, mem_size=12, rho=0.5, seed=1)
    parts = run_stream(FineTuning, plugins=[OnlineReplayPlugin(PRSBuffer(12, rho=0.5, seed=1))])
    assert same_weights(ours, parts)
    assert not same_weights(ours, run_stream(FineTuning))


def test_prs_does_not_change_the_callers_plugins(run_stream):
    plugins = []
    strategy = run_stream(PRS, plugins=plugins, mem_size=12, rho=0.5, seed=1)
    assert plugins == []
    assert strategy.replay in strategy.plugins
