import pytest

from avalanche_agcn.evaluation.functional import nested_summary
from avalanche_agcn.evaluation.history import NestedHistory


def test_rows_find_their_place_by_their_length():
    history = NestedHistory()
    history.add("mAP", [0.4, 0.5, 0.6])
    history.add("mAP", [0.8])
    assert history.matrix("mAP") == [[0.8], [], [0.4, 0.5, 0.6]]
    history.add("mAP", [0.6, 0.7])
    assert history.summary("mAP") == nested_summary([[0.8], [0.6, 0.7], [0.4, 0.5, 0.6]])


def test_row_added_again_replaces_the_first():
    history = NestedHistory()
    history.add("mAP", [0.8])
    history.add("mAP", [0.9])
    assert history.matrix("mAP") == [[0.9]]


def test_matrix_is_a_copy():
    history = NestedHistory()
    history.add("mAP", [0.8])
    history.matrix("mAP")[0][0] = 0.0
    assert history.matrix("mAP") == [[0.8]]


def test_state_restores_and_is_independent():
    history, restored = NestedHistory(), NestedHistory()
    history.add("mAP", [0.8])
    history.add("OF1", [0.7])
    restored.load_state_dict(history.state_dict())
    restored.add("mAP", [0.6, 0.7])
    assert restored.names == ["mAP", "OF1"]
    assert history.matrix("mAP") == [[0.8]]
    assert restored.matrix("mAP") == [[0.8], [0.6, 0.7]]


def test_unknown_name_is_refused_with_the_known_ones():
    history = NestedHistory()
    history.add("mAP", [0.8])
    with pytest.raises(KeyError, match=r"no nested matrix 'map', only \['mAP'\]"):
        history.matrix("map")
