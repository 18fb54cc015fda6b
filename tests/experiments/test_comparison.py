import math

import pytest
from scipy import stats

from avalanche_agcn.experiments.report import (
    balance,
    comparison_table,
    confidence_interval,
    paired_differences,
    paired_table,
    verdict,
)

ORDERS = ("data", "shuffled-1")
CLASSES = [[80.0, 60.0], [70.0, 40.0, 90.0, None]]  # two classes, then two more; one without a positive


@pytest.fixture
def make(make_result):
    """A function that makes the results of a row: its last mAP by class order and seed."""

    def make(label, scores, seconds=100.0, stored=None):
        name, time = label.split(" ")[0], {"train": seconds, "eval": 1.0, "total": seconds + 1}
        cost = {"seconds": time, "stored": stored}
        return [
            make_result(name, seed, last, settings={"label": label, "class_order": order}, **cost)
            for order, own in zip(ORDERS, scores, strict=True)
            for seed, last in enumerate(own)
        ]

    return make


def test_rows_have_the_best_first_what_they_store_and_time_as_a_ratio(make):
    slow = make("er + negatives", [[50, 52], [54, 56]], 150.0, {"images": 200, "bytes": 2_500_000})
    table = comparison_table([*make("finetuning", [[40, 41], [42, 43]]), *slow])
    assert [row[0] for row in table.rows] == ["ER + negatives", "Fine-Tuning"]
    assert table.rows[0][1:3] == ["4", "53.0 ± 2.6"]
    assert table.rows[0][-3:] == ["200", "2.5", "1.5"]
    assert table.rows[1][-3:] == ["–", "–", "1.0"]
    with pytest.raises(ValueError, match="no result of 'finetuning'"):
        comparison_table(slow)


def test_pairs_have_the_same_seed_and_class_order(make):
    first, second = make("er", [[50, 52], [54, 56]]), make("ewc", [[40, 41], [42, 43]])
    assert paired_differences(first, second[::-1]) == {"data": [10, 11], "shuffled-1": [12, 13]}
    with pytest.raises(ValueError, match="different seeds or class orders"):
        paired_differences(first, second[1:])


def test_the_interval_is_that_of_a_paired_t_test(make):
    a, b = [50.0, 52.0, 54.0, 56.0], [40.0, 43.0, 41.0, 44.0]
    low, high = confidence_interval([x - y for x, y in zip(a, b, strict=True)])
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high))
    assert confidence_interval([1.0]) == (-math.inf, math.inf)


def test_differences_are_shown_for_every_class_order(make):
    results = [*make("er", [[50, 52], [54, 56]]), *make("ewc", [[40, 41], [42, 43]])]
    table = paired_table(results, ["er"], ["ewc"])
    assert table.rows[0][:3] == ["ER − EWC", "4", "+11.5"]
    assert table.rows[0][4:] == ["10.5 ± 0.7", "12.5 ± 0.7"]
    assert table.header[4:] == ["order data", "order shuffled-1"]


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
        "lost less of what was learned: the mean AP of its classes was 60.0 when they were new and 5.0 lower "
        "at the end, against 60.0 and 15.0 lower."
    )
    assert "learned new classes better:" in verdict([method("er", 80, 50), method("agcn", 60, 55)])
    both = verdict([method("er", 80, 70), method("agcn", 60, 30)])
    assert "learned new classes better and lost less" in both
    seeds = [method("er", 60, 50), method("er", 80, 80, seed=1), method("agcn", 60, 60)]
    assert "67.5 against 60.0 of AGCN (2 seeds)" in verdict(seeds)
    equal = verdict([method("er", 60, 50), method("agcn", 60, 50)])
    assert equal == "ER and AGCN have the best mAP after the last experience, 55.0 (one seed)."


def test_one_method_or_an_upper_bound_is_no_comparison(make_result):
    assert verdict([make_result(class_ap=CLASSES)]) is None
    at_once = make_result("multitask", class_ap=[[], CLASSES[1]])
    assert verdict([make_result(class_ap=CLASSES), at_once]) is None
    assert verdict([make_result(), make_result("er")]) is None  # results of an earlier version
