from avalanche_agcn.experiments.methods import METHODS


def test_every_method_is_measured_with_settings_that_it_takes(load):
    passes = load("methods").PASSES
    assert set(passes) == set(METHODS)
    for name, (settings, _, _) in passes.items():
        assert set(settings) <= set(METHODS[name].arguments)
