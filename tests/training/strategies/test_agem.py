from avalanche_agcn.training import AGEM, FineTuning
from avalanche_agcn.training.plugins import AGEMPlugin
from avalanche_agcn.training.storage import ExperienceReservoirBuffer


def test_agem_is_fine_tuning_with_its_plugin(run_stream, same_weights):
    ours = run_stream(AGEM, mem_size=12, sample_size=5, seed=1)
    parts = run_stream(FineTuning, plugins=[AGEMPlugin(ExperienceReservoirBuffer(12, seed=1), sample_size=5)])
    assert same_weights(ours, parts)
    assert not same_weights(ours, run_stream(FineTuning))


def test_agem_does_not_change_the_callers_plugins(run_stream):
    plugins = []
    strategy = run_stream(AGEM, plugins=plugins, mem_size=12, sample_size=5, seed=1)
    assert plugins == []
    assert strategy.agem in strategy.plugins
