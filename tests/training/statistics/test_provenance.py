from avalanche_agcn.training.statistics.provenance import SEVERAL, Provenance


def test_classes_that_became_known_later_are_appended():
    first = Provenance("network", "transform", "cat, dog", "None", random=False)
    later = first._replace(classes="cat, dog, kite")
    assert first.joined(later) == later
    for other in ("cat, dogs", "kite, cat, dog", "cat"):
        assert first.joined(first._replace(classes=other)).classes == SEVERAL
