from avalanche_agcn.training import OCDM, FineTuning
from avalanche_agcn.training.plugins import OnlineReplayPlugin
from avalanche_agcn.training.storage import OCDMBuffer


def test_ocdm_is_fine_tuning_with_its_plugin(run_stream, same_weights):
    ours = run_stream(OCDM, mem_size=12, rho=0.5, newer_as_negative=True)
    parts = run_stream(
        FineTuning, plugins=[OnlineReplayPlugin(OCDMBuffer(12, rho=0.5), newer_as_negative=True)]
    )
    assert same_weights(ours, parts)
    assert not same_weights(ours, run_stream(FineTuning))


def test_ocdm_does_not_change_the_callers_plugins(run_stream):
    plugins = []
    strategy = run_stream(OCDM, plugins=plugins, mem_size=12, rho=0.5, newer_as_negative=True)
    assert plugins == []
    assert strategy.replay in strategy.plugins
