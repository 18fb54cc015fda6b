import pickle
import random

import numpy as np
import pytest
import torch
from avalanche.core import SupervisedPlugin

from avalanche_agcn.experiments import checkpoint
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
    """Counts steps, before they are saved."""

    n = 0

    def after_training_iteration(self, strategy, **kwargs):
        self.n += 1


class Noise(SupervisedPlugin):
    """Draws as an experience begins, as a network that grows does, and in each step, as dropout does."""

    def before_training_exp(self, strategy, **kwargs):
        torch.rand(())

    def before_backward(self, strategy, **kwargs):
        strategy.loss = strategy.loss * torch.rand(())


def make_run(settings, out, **options):
    run = Run(settings, out, log=lambda text: None, **options)
    run.steps = Steps()
    run.strategy.plugins[:0] = [Noise(), run.steps]
    return run


def stop(run, n_saves):
    """End a run when it has saved its state so many times; return the number of its steps."""
    saved = []

    def save_and_stop(path, state):
        save_state(path, state)
        saved.append(path)
        if len(saved) == n_saves:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save_state", save_and_stop)
        with pytest.raises(Killed):
            run.run()
    return run.steps.n


def finish(run, *, n_before=0):
    """All that comes out, weights and memories to the last bit, of a run with so many steps behind it."""
    results, strategy = run.run(), run.strategy
    n_steps = n_before + run.steps.n
    weights = {name: tensor.tolist() for name, tensor in strategy.model.state_dict().items()}
    memories = [
        plugin.storage_policy.keys.tolist()
        for plugin in strategy.plugins
        if hasattr(plugin, "storage_policy")
    ]
    return n_steps, results.nested, results.acm, results.pictures, weights, memories


def stop_and_resume(settings, out, n_saves, *, resume_with=None):
    n_steps = stop(make_run(settings, out), n_saves)
    return finish(make_run(resume_with or settings, out, resume=True), n_before=n_steps)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A folder for features of frozen networks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


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
    ("n_saves", "changes"),  # 1 to 3: in the first experience; 4: after training; 5: after evaluation
    [
        (1, {"method": "finetuning"}),
        (2, {"method": "streaming_ridge"}),
        (2, {"method": "multitask"}),
        (4, {"method": "l3a"}),
        (5, {"method": "ewc"}),
        (6, {"method": "agcn", "preset": "statistics"}),
        (7, {"method": "er"}),
        (7, {"method": "agem"}),
        (7, {"method": "agcn"}),
        (7, {"method": "csc"}),
        (7, {"method": "streaming_ridge", "held_images": 0}),
        (7, {"method": "lwf", "negatives": ("statistics",)}),
        (7, {"method": "finetuning", "pseudo_labels": True, "loss": "asl", "protocol": "B0-C2"}),
        (9, {"method": "agcn", "freeze_backbone": True}),
        (10, {"method": "agcn", "train_epochs": 2, "storage_policy": "prs", "negatives": ("memory",)}),
    ],
)
def test_a_killed_run_resumes_to_the_same_end(tmp_path, changes, n_saves, whole):
    assert stop_and_resume(smoke(**changes, num_workers=1), tmp_path, n_saves) == whole(**changes)


@pytest.mark.parametrize("n_saves", [3, 13])  # after an epoch's last step; in the second epoch of the second
def test_a_run_goes_on_with_another_number_of_workers_in_any_epoch(tmp_path, n_saves, whole):
    changes = {"storage_policy": "ocdm", "train_epochs": 2}
    before, after = (smoke(num_workers=n, **changes) for n in (2, 0))
    assert stop_and_resume(before, tmp_path, n_saves, resume_with=after) == whole(**changes)


def test_a_run_that_is_stopped_twice_in_an_epoch_goes_on_to_the_same_end(tmp_path, whole):
    settings = smoke(method="prs", num_workers=2)
    n_steps = [stop(make_run(settings, tmp_path, resume=True), n_saves) for n_saves in (6, 1)]
    assert n_steps == [4, 1]
    assert finish(make_run(settings, tmp_path, resume=True), n_before=5) == whole(method="prs")


def test_a_file_is_written_into_a_new_folder_but_nan_is_not(tmp_path):
    write_json(tmp_path / "new" / "a.json", {"ä": [1, None]})
    assert (tmp_path / "new" / "a.json").read_text() == '{\n "ä": [\n  1,\n  null\n ]\n}\n'
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(tmp_path / "b.json", float("nan"))


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


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("code of the file was run",))


def test_code_in_a_file_is_not_executed(tmp_path):
    foreign, ours = tmp_path / "foreign", tmp_path / "ours"
    foreign.write_bytes(pickle.dumps(Bomb()))
    save_state(ours, {"bomb": Bomb()})
    for path, reason in ((foreign, "not a saved state of this package"), (ours, "has the right checksum")):
        with pytest.raises(DamagedState, match=reason):
            load_state(path)


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
    seed_everything(3)
    drawn()
    assert drawn() == expected
