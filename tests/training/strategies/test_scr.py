from avalanche_agcn.training import SCR, FineTuning
from avalanche_agcn.training.plugins import ContrastivePlugin, OnlineReplayPlugin
from avalanche_agcn.training.storage import ReservoirBuffer


def test_scr_is_fine_tuning_with_its_plugin(run_stream, same_weights):
    ours = run_stream(SCR, mem_size=12, batch_size_mem=6, contrast_weight=0.5)
    parts = run_stream(
        FineTuning,
        plugins=[
            ContrastivePlugin(weight=0.5),
            OnlineReplayPlugin(ReservoirBuffer(12), batch_size_mem=6, views=2),
        ],
    )
    assert same_weights(ours, parts)
    assert not same_weights(ours, run_stream(FineTuning))


def test_scr_does_not_change_the_callers_plugins(run_stream):
    plugins = []
    strategy = run_stream(SCR, plugins=plugins, mem_size=12, batch_size_mem=6, contrast_weight=0.5)
    assert plugins == []
    assert strategy.contrast in strategy.plugins
