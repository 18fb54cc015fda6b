import pickle
import random

import numpy as np
import pytest
import torch

from avalanche_agcn.experiments.state import (
    MAGIC,
    DamagedState,
    load_state,
    random_state,
    save_state,
    seed_everything,
    set_random_state,
)


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
    with pytest.raises(pickle.UnpicklingError, match="weights_only"):
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
