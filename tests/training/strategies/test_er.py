from avalanche_agcn.training import ER, FineTuning
from avalanche_agcn.training.plugins import OnlineReplayPlugin
from avalanche_agcn.training.storage import ReservoirBuffer


def test_er_is_fine_tuning_with_its_plugin(run_stream, same_weights):
    ours = run_stream(ER, mem_size=12, batch_size_mem=5, seed=1)
    parts = run_stream(
        FineTuning, plugins=[OnlineReplayPlugin(ReservoirBuffer(12, seed=1), batch_size_mem=5)]
    )
    assert same_weights(ours, parts)
    assert not same_weights(ours, run_stream(FineTuning))


def test_er_does_not_change_the_callers_plugins(run_stream):
    plugins = []
    strategy = run_stream(ER, plugins=plugins, mem_size=12, batch_size_mem=5, seed=1)
    assert plugins == []
    assert strategy.replay in strategy.plugins
