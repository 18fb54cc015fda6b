import pytest
import torch
from avalanche.core import SupervisedPlugin

from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings

METHODS = ["finetuning", "agem", "er", "prs", "ocdm", "scr", "agcn"]  # agcn has a memory too


def smoke(**changes):
    """Two experiences of three batches, the last one smaller, flipped at random; a save after each batch."""
    return make_settings("scenes", SMOKE, **{"limit": 22, "checkpoint_minutes": 0.0, **changes})


class Killed(Exception):
    """Stands for a process that ends at once."""


class Steps(SupervisedPlugin):
    """Counts steps, and may stop after so many, all of them saved."""

    def __init__(self, most=None):
        super().__init__()
        self.n, self.most = 0, most

    def after_training_iteration(self, strategy, **kwargs):
        self.n += 1
        if self.n == self.most:
            raise Killed


class Noise(SupervisedPlugin):
    """Draws as an experience begins, as a network that grows does, and in each step, as dropout does."""

    def before_training_exp(self, strategy, **kwargs):
        torch.rand(())

    def before_backward(self, strategy, **kwargs):
        strategy.loss = strategy.loss * torch.rand(())


def make_run(settings, out, **options):
    run = Run(settings, out, log=lambda text: None, **options)
    run.strategy.plugins.insert(0, Noise())
    return run


def finish(run, *, n_before=0):
    """All that comes out, weights and memories to the last bit, of a run with so many steps behind it."""
    steps = Steps()
    run.strategy.plugins.append(steps)
    results, strategy = run.run(), run.strategy
    assert n_before + steps.n == 2 * 3 * run.settings.train_epochs
    weights = {name: tensor.tolist() for name, tensor in strategy.model.state_dict().items()}
    memories = [
        plugin.storage_policy.keys.tolist()
        for plugin in strategy.plugins
        if hasattr(plugin, "storage_policy")
    ]
    return results.nested, results.acm, weights, memories


def stop_and_resume(settings, out, n_steps, *, resume_with=None):
    stopped = make_run(settings, out)
    stopped.strategy.plugins.append(Steps(n_steps))
    with pytest.raises(Killed):
        stopped.run()
    return finish(make_run(resume_with or settings, out, resume=True), n_before=n_steps)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What comes out of uninterrupted runs without workers, each made once."""
    made = {}

    def outcome(**changes):
        settings = smoke(**changes)
        if settings not in made:
            made[settings] = finish(make_run(settings, tmp_path_factory.mktemp("whole")))
        return made[settings]

    return outcome


@pytest.mark.parametrize("method", METHODS)
def test_workers_change_nothing(tmp_path, method, whole):
    assert finish(make_run(smoke(method=method, num_workers=2), tmp_path)) == whole(method=method)


def test_one_worker_changes_nothing(tmp_path, whole):
    assert finish(make_run(smoke(method="er", num_workers=1), tmp_path)) == whole(method="er")


@pytest.mark.parametrize(
    ("method", "n_steps"),  # within the first experience, or the second
    [("finetuning", 1), ("er", 1), ("er", 5), ("agem", 5), ("agcn", 5)],
)
def test_a_run_with_workers_goes_on_to_the_same_end(tmp_path, method, n_steps, whole):
    settings = smoke(method=method, num_workers=2)
    assert stop_and_resume(settings, tmp_path, n_steps) == whole(method=method)


@pytest.mark.parametrize("n_steps", [3, 11])  # after an epoch's last step; in the second epoch of the second
def test_a_run_goes_on_with_another_number_of_workers_in_any_epoch(tmp_path, n_steps, whole):
    changes = {"storage_policy": "ocdm", "train_epochs": 2}
    outcome = stop_and_resume(
        smoke(num_workers=2, **changes), tmp_path, n_steps, resume_with=smoke(num_workers=0, **changes)
    )
    assert outcome == whole(**changes)


def test_a_run_that_is_stopped_twice_in_an_epoch_goes_on_to_the_same_end(tmp_path, whole):
    settings = smoke(method="prs", num_workers=2)
    for n_steps in (4, 1):
        run = make_run(settings, tmp_path, resume=True)
        run.strategy.plugins.append(Steps(n_steps))
        with pytest.raises(Killed):
            run.run()
    assert finish(make_run(settings, tmp_path, resume=True), n_before=5) == whole(method="prs")
