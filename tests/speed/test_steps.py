import itertools

import pytest
from avalanche.core import SupervisedPlugin

from avalanche_agcn.training import FineTuning, MultiTask

pytestmark = pytest.mark.filterwarnings("ignore:No loggers")


@pytest.fixture
def steps(load, monkeypatch):
    """The module, with small images and a clock that advances by one whenever it is read."""
    steps = load("steps")
    monkeypatch.setattr(steps, "now", itertools.count().__next__)
    monkeypatch.setattr(steps, "IMAGE_SIZE", 16)
    return steps


def test_a_step_includes_the_time_of_its_last_plugin(steps):
    class Slow(SupervisedPlugin):
        def after_training_iteration(self, strategy, **kwargs):
            for _ in range(100):
                steps.now()

    sides = {name: steps.make_plain("small", 8) for name in ("plain", "slow")}
    sides["slow"].plugins.append(Slow())
    times = steps.step_times(sides, steps.noise_benchmark(8), repeats=2)
    assert times["slow"] == times["plain"] + 100


@pytest.mark.parametrize("method", [MultiTask, FineTuning])
def test_a_turn_has_the_same_number_of_steps_for_joint_training(steps, method):
    strategy = steps.make_method(method, "small", 8)
    benchmark = steps.noise_benchmark(8)
    steps.step_times({"one": strategy}, benchmark, repeats=1)
    assert strategy.clock.train_exp_iterations == steps.STEPS
    assert [len(e.dataset) for e in benchmark.train_stream] == [steps.N_FIRST, 8 * steps.STEPS]
    assert [len(e.classes_in_this_experience) for e in benchmark.train_stream] == [steps.N_OLD, steps.N_NEW]
