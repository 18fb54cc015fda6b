import os

import pytest


@pytest.mark.parametrize("at_least", [False, True])
@pytest.mark.parametrize("measured", [1.3, 1.5])
def test_a_row_says_whether_its_bound_holds(load, measured, at_least):
    missed = (measured > 1.4) != at_least
    row = load("measure").Row("a", measured, 1.4, at_least, "×")
    assert row.missed == missed
    sign, verdict = "≥" if at_least else "≤", "**missed**" if missed else "ok"
    assert str(row) == f"| a | {measured}× | {sign} 1.4× | {verdict} |  |"
    unbounded = load("measure").Row("a", 12345.6, note="why")
    assert (unbounded.missed, str(unbounded)) == (False, "| a | 12,346 |  |  | why |")


def test_sides_take_turns_and_the_best_turn_counts(load):
    order, clock = [], iter([0, 5, 5, 6, 10, 12, 20, 27]).__next__
    sides = {name: lambda name=name: order.append(name) for name in "ab"}
    assert load("measure").best_times(sides, 2, clock=clock) == {"a": 2, "b": 1}
    assert order == ["a", "b", "a", "b"]


def test_a_ratio_is_the_time_of_the_first_side_over_that_of_the_second(load, monkeypatch):
    measure = load("measure")
    monkeypatch.setattr(measure, "best_times", lambda sides, repeats: {n: f() for n, f in sides.items()})
    row = measure.ratio("a / b", lambda: 3.0, lambda: 2.0, bound=1.4, repeats=5, note="why")
    assert row == measure.Row("a / b", 1.5, 1.4, note="why")
    assert row.missed


def test_in_child_runs_in_another_process_and_numbers_have_three_digits_and_no_exponent(load):
    assert load("measure").in_child(os.getpid) != os.getpid()
    number = load("measure").number
    assert [number(value) for value in (0.000141, 1.0, 14.71, 2500)] == ["0.000141", "1", "14.7", "2,500"]
