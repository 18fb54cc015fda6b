import pickle
import random

import numpy as np
import pytest
import torch
from avalanche.core import SupervisedPlugin

from avalanche_agcn.experiments.checkpoint import (
    MAGIC,
    DamagedState,
    load_state,
    random_state,
    save_state,
    seed_everything,
    set_random_state,
    write_atomically,
    write_json,
    write_text,
)
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings


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


@pytest.mark.parametrize("method", ["er", "agcn", "streaming_ridge"])
def test_workers_change_nothing(tmp_path, method, whole):
    assert finish(make_run(smoke(method=method, num_workers=2), tmp_path)) == whole(method=method)


@pytest.mark.parametrize(
    ("changes", "n_steps"),  # within the first experience, or the second
    [
        ({"method": "finetuning"}, 1),
        ({"method": "er"}, 5),
        ({"method": "agem"}, 5),
        ({"method": "agcn"}, 5),
        ({"method": "agcn", "preset": "statistics"}, 4),
        ({"method": "streaming_ridge"}, 2),
        ({"method": "streaming_ridge", "held_images": 0}, 5),
        ({"method": "lwf", "negatives": ("statistics",)}, 5),
    ],
)
def test_a_killed_run_resumes_to_the_same_end(tmp_path, changes, n_steps, whole):
    assert stop_and_resume(smoke(**changes, num_workers=1), tmp_path, n_steps) == whole(**changes)


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


def test_a_file_is_written_into_a_new_folder(tmp_path):
    write_json(tmp_path / "new" / "a.json", {"ä": [1, None]})
    assert (tmp_path / "new" / "a.json").read_text() == '{\n "ä": [\n  1,\n  null\n ]\n}\n'


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"half of the n")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, write)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_nan_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(tmp_path / "a.json", float("nan"))


def test_a_file_may_be_read_by_whom_any_new_file_may(tmp_path):
    (tmp_path / "other").touch()
    write_text(tmp_path / "written", "text")
    assert (tmp_path / "written").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_state_comes_back_as_it_was(tmp_path):
    state = {"weights": torch.arange(5.0), "numbers": [1, 2.5, None, "text"], "nested": {"a": {"b": True}}}
    save_state(tmp_path / "state", state)
    loaded = load_state(tmp_path / "state")
    assert torch.equal(loaded.pop("weights"), state.pop("weights"))
    assert loaded == state


@pytest.mark.parametrize("keep", [0, 10, len(MAGIC), len(MAGIC) + 20, 500, -1])
def test_a_truncated_file_is_named(tmp_path, keep):
    path = tmp_path / "state"
    save_state(path, {"weights": torch.arange(100.0)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DamagedState, match=str(path)):
        load_state(path)


def test_a_changed_byte_is_found(tmp_path):
    path = tmp_path / "state"
    save_state(path, {"weights": torch.arange(100.0)})
    content = bytearray(path.read_bytes())
    content[-200] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedState, match="damaged or was only partly written"):
        load_state(path)


def test_a_foreign_file_is_not_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("code of the file was run",))

    path = tmp_path / "state"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DamagedState, match="not a saved state of this package"):
        load_state(path)


def test_code_in_a_file_of_our_form_is_not_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("code of the file was run",))

    save_state(tmp_path / "state", {"bomb": Bomb()})
    with pytest.raises(DamagedState, match="state"):
        load_state(tmp_path / "state")


def drawn():
    return random.random(), np.random.rand(), torch.rand(3).tolist(), random.gauss(0, 1)  # noqa: NPY002


def test_random_numbers_go_on_after_saving_and_loading(tmp_path):
    seed_everything(3)
    drawn()
    save_state(tmp_path / "state", random_state())
    expected = drawn()
    seed_everything(4)
    set_random_state(load_state(tmp_path / "state"))
    assert drawn() == expected


def test_a_seed_fixes_every_generator():
    seed_everything(7)
    first = drawn()
    seed_everything(7)
    assert drawn() == first
