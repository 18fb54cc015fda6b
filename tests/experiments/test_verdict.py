"""The sentence that says who won, and why."""

import pytest

from avalanche_agcn.experiments.comparison import balance, verdict

CLASSES = [[80.0, 60.0], [70.0, 40.0, 90.0, None]]  # two classes, then two more; one without a positive


def test_ap_at_the_end_is_what_was_learned_less_what_was_lost(make_result):
    own = balance([make_result(class_ap=CLASSES)])
    assert own.new == pytest.approx((80 + 60 + 90) / 3)
    assert own.last == pytest.approx((70 + 40 + 90) / 3)
    assert own.new - own.lost == pytest.approx(own.last)


def test_the_best_method_is_named_with_the_reason_that_holds(make_result):
    def method(name, new, last, seed=0):
        return make_result(name, seed, class_ap=[[new, new], [last, last, new, new]])

    sentence = verdict([method("er", 60, 50), method("agcn", 60, 30), method("finetuning", 70, 10)])
    assert sentence == (
        "ER has the best mAP after the last experience, 55.0 against 45.0 of AGCN (one seed), because it "
        "lost less of what was learned: 60.0 AP when classes were new and 5.0 lost later, against 60.0 and "
        "15.0 lost."
    )
    assert "learned new classes better:" in verdict([method("er", 80, 50), method("agcn", 60, 55)])
    both = verdict([method("er", 80, 70), method("agcn", 60, 30)])
    assert "learned new classes better and lost less" in both
    seeds = [method("er", 60, 50), method("er", 80, 80, seed=1), method("agcn", 60, 60)]
    assert "67.5 against 60.0 of AGCN (2 seeds)" in verdict(seeds)


def test_one_method_or_an_upper_bound_is_no_comparison(make_result):
    assert verdict([make_result(class_ap=CLASSES)]) is None
    at_once = make_result("multitask", class_ap=[[], CLASSES[1]])
    assert verdict([make_result(class_ap=CLASSES), at_once]) is None
    assert verdict([make_result(), make_result("er")]) is None  # results of an earlier version
