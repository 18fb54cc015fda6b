from dataclasses import replace

import pytest

from avalanche_agcn.experiments.ablations import OF_OUR_OWN, VARIANTS
from avalanche_agcn.experiments.paper import TABLE_1
from avalanche_agcn.experiments.results import Results
from avalanche_agcn.experiments.settings import make_settings
from avalanche_agcn.experiments.tables import (
    METHOD_NAMES,
    Table,
    all_tables,
    mean_and_deviation,
    name_of,
    table_1,
    table_2,
    table_3,
)


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


def test_results_with_other_settings_have_no_common_mean():
    slow, fast = make("agcn", 0, 50.0, lr=1e-4), make("agcn", 1, 52.0, lr=1e-3)
    with pytest.raises(
        ValueError, match=r"'agcn' have different settings \(lr: 0.0001, now 0.001\).*--set label"
    ):
        table_1([slow, fast])
    with pytest.raises(ValueError, match=r"'agcn' has several results of one seed \(seeds \[0, 0\]\)"):
        table_1([slow, slow])


def test_seeds_from_several_machines_have_a_common_mean():
    here, there = (
        make("agcn", 0, 50.0, data="here", device="cpu"),
        make("agcn", 1, 52.0, data="there", device="cuda"),
    )
    assert table_1([here, there]).rows[0][2] == "51.0 ± 1.4"


def test_the_papers_figures_stand_in_columns_marked_as_such():
    table = table_1([make(method, 0, 50.0, "SplitCOCO", n_classes=40) for method in ("agcn", "ocdm")])
    assert table.header[-4:] == ["paper: mAP", "paper: CF1", "paper: OF1", "paper: forgetting %"]
    by_method = {row[0]: row[-4:] for row in table.rows}
    assert by_method["AGCN"] == ["34.11", "35.49", "42.37", "23.71"]
    assert by_method["OCDM"] == ["–"] * 4


def test_results_of_another_stream_do_not_stand_beside_the_papers():
    few_classes = make("agcn", 0, 50.0, "SplitCOCO")
    few_images = make("agcn", 0, 50.0, "SplitCOCO", n_classes=40, limit=100)
    held_out = make("agcn", 0, 50.0, "SplitCOCO", n_classes=40, validation=0.1)
    for result in (few_classes, few_images, held_out):
        assert not any("paper" in title for title in table_1([result]).header)


def test_variants_of_a_method_are_rows_of_their_own():
    table = table_1([make("agcn", 0, 50.0), make("agcn", 0, 45.0, label="agcn without R, Q")])
    assert [row[0] for row in table.rows] == ["AGCN", "AGCN without R, Q"]


def ablations(benchmark="SplitCOCO", seeds=(0,), labels=VARIANTS, **settings):
    """Results of variants; the k-th has a last score of 30 + k."""
    run = make_settings("coco" if benchmark == "SplitCOCO" else "scenes", **settings)
    results = []
    for k, (label, change) in enumerate(VARIANTS.items()):
        own = replace(run, label=label, **change(run)).as_dict()
        rows = [*([80.0] * (t + 1) for t in range(9)), [60.0] * 9 + [30.0 + k]]
        nested = dict.fromkeys(("mAP", "CF1", "OF1"), rows)
        made = [make("agcn", seed, 0.0, benchmark, n_classes=40) for seed in seeds]
        results += [replace(result, settings=own, nested=nested, summary={}) for result in made]
    return [result for result in results if result.label in labels]


def test_table_2_is_without_and_with_the_cross_blocks_beside_the_papers():
    table = table_2(ablations())
    assert table.header[:4] == ["A & B", "R & Q", "seeds", "mAP last"]
    assert [row[:4] for row in table.rows] == [["√", "×", "1", "31.0"], ["√", "√", "1", "30.0"]]
    assert table.header[-3:] == ["paper: mAP", "paper: CF1", "paper: OF1"]
    assert [row[-3:] for row in table.rows] == [["31.52", "30.37", "34.87"], ["34.11", "35.49", "42.37"]]


def test_table_3_has_the_weights_in_the_papers_order_with_forgetting_of_each_metric():
    table = table_3(ablations(seeds=(0, 1)))
    weights = ["0.05 0.95 0", "0.07 0.93 0", "0.09 0.91 0", "0.07 0.93 1e4", "0.07 0.93 1e5", "0.07 0.93 1e6"]
    assert [" ".join(row[:3]) for row in table.rows] == weights
    column = dict(zip(table.header, zip(*table.rows, strict=True), strict=True))
    assert column["mAP last"][4] == "30.0 ± 0.0"  # of the full method, the first variant
    assert column["forgetting % OF1"][0] == "25.0 ± 0.0"  # from 80 to 60
    assert column["paper: mAP"] == ("29.90", "30.99", "29.71", "33.05", "34.11", "33.71")
    assert column["paper: forgetting % CF1"][-1] == "21.30"


def test_the_papers_ablations_stand_beside_the_same_weights_only():
    table = table_3(ablations(lambda_gph=1e3))
    column = dict(zip(table.header, zip(*table.rows, strict=True), strict=True))
    assert column["λ₃"] == ("0", "0", "0", "100", "1e3", "1e4")
    assert column["paper: mAP"] == ("29.90", "30.99", "29.71", "–", "–", "33.05")


def test_ablations_on_another_stream_do_not_stand_beside_the_papers():
    for table in (table_2, table_3):
        assert not any("paper" in title for title in table(ablations("SplitScenes")).header)


def test_there_are_no_ablations_without_variants():
    assert list(all_tables([make("agcn", 0, 50.0), make("er", 0, 40.0)])) == ["Table 1"]
    assert list(all_tables(ablations(labels=["agcn", "agcn without R and Q"]))) == ["Table 1", "Table 2"]
    assert list(all_tables(ablations(labels=["agcn 0×λ₃"]))) == ["Table 3"]


def test_variants_stand_in_tables_of_their_own_and_not_in_the_first():
    tables = all_tables(ablations())
    assert [row[0] for row in tables["Table 1"].rows] == ["AGCN"]
    names = [row[0] for row in tables["Variants of ours"].rows]
    assert names == ["AGCN", *(name_of(label) for label in OF_OUR_OWN)]
    assert [len(tables[f"Table {k}"].rows) for k in (2, 3)] == [2, 6]


def test_names_are_written_as_in_the_paper():
    assert [name_of(label) for label in ("agem", "agcn 0×λ₃", "mine")] == ["A-GEM", "AGCN 0×λ₃", "mine"]
    assert name_of("agcn + er + negatives") == "AGCN + ER + negatives"


def test_symbols_become_latex():
    table = Table(["λ₁", "R & Q"], [["1e5", "√"], ["0.1×λ₃", "×"]])
    assert table.latex().splitlines()[2::2] == [
        r"$\lambda_1$ & R \& Q \\",
        r"1e5 & $\surd$ \\",
        r"\bottomrule",
    ]
    assert r"0.1$\times$$\lambda_3$ & $\times$" in table.latex()


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
    assert mean_and_deviation([-0.01, -0.02]) == "0.0 ± 0.0"


def test_every_method_of_the_paper_has_a_name():
    assert set(TABLE_1["SplitCOCO"]) == set(TABLE_1["SplitWIDE"]) == set(METHOD_NAMES) - {"ocdm"}
