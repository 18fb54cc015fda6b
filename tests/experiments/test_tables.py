import pytest

from avalanche_agcn.experiments.paper import TABLE_1
from avalanche_agcn.experiments.results import Results
from avalanche_agcn.experiments.tables import METHOD_NAMES, Table, mean_and_deviation, table_1


def make(method, seed, last, benchmark="SplitScenes", n_classes=2, **settings):
    return Results(
        benchmark=benchmark,
        method=method,
        seed=seed,
        settings=settings,
        class_names=[str(column) for column in range(n_classes)],
        nested={
            metric: [[80.0], *[[]] * (n_classes // 4 - 2), [60.0] * (max(n_classes // 4, 2) - 1) + [last]]
            for metric in ("mAP", "CF1", "OF1")
        },
        per_class_ap={},
        seconds={"train": 60.0, "eval": 40.0, "total": 100.0 + seed},
        environment={},
    )


def test_rows_are_mean_and_deviation_over_seeds_in_the_papers_order():
    table = table_1([make("agcn", 0, 50.0), make("agcn", 1, 52.0), make("ewc", 0, 40.0)])
    assert [row[:4] for row in table.rows] == [
        ["EWC", "1", "40.0", "50.0"],
        ["AGCN", "2", "51.0 ± 1.4", "55.5 ± 0.7"],
    ]
    assert table.rows[1][-3:] == ["20.0 ± 0.0", "25.0 ± 0.0", "100 ± 1"]
    assert not any(title.startswith("paper") for title in table.header)


def test_the_papers_figures_stand_in_columns_marked_as_such():
    table = table_1([make(method, 0, 50.0, "SplitCOCO", n_classes=40) for method in ("agcn", "ocdm")])
    assert table.header[-4:] == ["paper: mAP", "paper: CF1", "paper: OF1", "paper: forgetting %"]
    by_method = {row[0]: row[-4:] for row in table.rows}
    assert by_method["AGCN"] == ["34.11", "35.49", "42.37", "23.71"]
    assert by_method["OCDM"] == ["–"] * 4


def test_results_of_another_stream_do_not_stand_beside_the_papers():
    assert not any("paper" in title for title in table_1([make("agcn", 0, 50.0, "SplitCOCO")]).header)


def test_variants_of_a_method_are_rows_of_their_own():
    table = table_1([make("agcn", 0, 50.0), make("agcn", 0, 45.0, label="agcn without R, Q")])
    assert [row[0] for row in table.rows] == ["AGCN", "agcn without R, Q"]


def test_results_of_two_benchmarks_are_not_mixed():
    with pytest.raises(ValueError, match=r"one benchmark.*'SplitCOCO', 'SplitScenes'"):
        table_1([make("agcn", 0, 50.0), make("agcn", 0, 50.0, "SplitCOCO")])


def test_formats_hold_the_same_cells():
    table = Table(["Method", "forgetting %"], [["A_B", "1.0 ± 0.5"], ["C", "–"]])
    assert table.markdown() == ("| Method | forgetting % |\n| --- | ---: |\n| A_B | 1.0 ± 0.5 |\n| C | – |\n")
    assert table.csv() == "Method,forgetting %\nA_B,1.0 ± 0.5\nC,–\n"
    assert table.latex() == (
        "\\begin{tabular}{lr}\n\\toprule\nMethod & forgetting \\% \\\\\n\\midrule\n"
        "A\\_B & 1.0 $\\pm$ 0.5 \\\\\nC & -- \\\\\n\\bottomrule\n\\end{tabular}\n"
    )


def test_values_that_are_not_known_are_left_out():
    assert mean_and_deviation([None, 2.0]) == "2.0"
    assert mean_and_deviation([None]) == "–"


def test_every_method_of_the_paper_has_a_name():
    assert set(TABLE_1["SplitCOCO"]) == set(TABLE_1["SplitWIDE"]) == set(METHOD_NAMES) - {"ocdm"}
