from dataclasses import replace

import numpy as np
import pytest

from avalanche_agcn.experiments import tables
from avalanche_agcn.experiments.methods import ABLATIONS, name_of
from avalanche_agcn.experiments.results import METRICS
from avalanche_agcn.experiments.settings import change_settings, make_settings
from avalanche_agcn.experiments.tables import (
    Table,
    all_tables,
    conclusion,
    stage_table,
    table_1,
    table_2,
    table_3,
)

LABELS = ["agcn", *ABLATIONS]
TRUTH = [[1.0, 0.2, 0.4], [0.6, 1.0, 0.0], [0.1, 0.3, 1.0]]


@pytest.fixture
def make(make_result):
    """A function that makes results of the paper's Split-COCO, but for the scores."""

    def make(method="agcn", seed=0, last=50.0, benchmark="SplitCOCO", **changes):
        rows = [*([80.0] * (t + 1) for t in range(9)), [60.0] * 9 + [last]]
        stream = {"class_names": [*map(str, range(40))], "classes_per_experience": [4] * 10}
        stream |= {"nested": dict.fromkeys(METRICS, rows)}
        return make_result(method, seed, benchmark=benchmark, **stream | changes)

    return make


@pytest.fixture
def ablations(make):
    """A function that makes results of AGCN and its ablations; the k-th has a last score of 30 + k."""

    def make_ablations(benchmark="SplitCOCO", seeds=(0,), labels=LABELS, **given):
        run = make_settings("coco" if benchmark == "SplitCOCO" else "scenes", **given)
        made = []
        for k, label in ((k, label) for k, label in enumerate(LABELS) if label in labels):
            changes = ABLATIONS[label].changes(run.method_settings) if label in ABLATIONS else {}
            settings = change_settings(run, **changes, label=label).as_dict()
            made += [make("agcn", seed, 30.0 + k, benchmark, settings=settings) for seed in seeds]
        return made

    return make_ablations


def captions(results, **options):
    return [one.caption for one in all_tables(results, **options)]


def suffixes(results):
    return [one.suffix for one in all_tables(results)]


def column(table):
    """Cells by the title of their column."""
    return dict(zip(table.header, zip(*table.rows, strict=True), strict=True))


def test_rows_are_mean_and_deviation_over_seeds_in_the_papers_order(make_result):
    table = table_1([make_result(last=50.0), make_result(seed=1, last=52.0), make_result("ewc", last=40.0)])
    assert [row[:4] for row in table.rows] == [
        ["EWC", "1", "40.0", "50.0"],
        ["AGCN", "2", "51.0 ± 1.4", "55.5 ± 0.7"],
    ]
    assert table.rows[1][-3:] == ["20.0 ± 0.0", "25.0 ± 0.0", "100 ± 1"]


def test_the_b_protocols_table_has_the_average_over_stages_and_their_f1(make):
    stages = {"mAP": [80.0, 60.0], "mean_class_F1": [50.0, 40.0], "OF1": [70.0, 55.0]}
    own = [make("er", seed, stages=stages) for seed in (0, 1)]
    table = stage_table([*own, make("ewc")])
    assert table.rows == [["ER", "2", "70.0 ± 0.0", "60.0 ± 0.0", "40.0 ± 0.0", "55.0 ± 0.0"]]
    late = make("multitask", stages={**stages, "mAP": [None, 60.0]})
    assert stage_table([late]).rows[0][2] == "–"
    caption = "As papers on B protocols report it"
    assert caption not in captions(own)
    assert caption in captions(own, stages=True)
    assert caption in captions([replace(own[0], settings={"protocol": "B0-C4"})])


def test_the_papers_scores_are_shown_for_the_same_stream_only(make, make_result, ablations):
    table = table_1([make(method) for method in ("multitask", "agcn", "ocdm")])
    assert table.header[-4:] == ["paper: mAP", "paper: CF1", "paper: OF1", "paper: forgetting %"]
    assert [row[0] for row in table.rows] == ["Multi-Task", "OCDM", "AGCN"]
    papers = [["65.85", "61.79", "66.27", "–"], ["–"] * 4, ["34.11", "35.49", "42.37", "23.71"]]
    assert [row[-4:] for row in table.rows] == papers
    other = ({"limit": 100}, {"validation_size": 0.1}, {"protocol": "B0-C10"})
    others = [make_result(benchmark="SplitCOCO"), *(make(settings=settings) for settings in other)]
    made = [table_1([result]) for result in others]
    made += [table(ablations("SplitScenes")) for table in (table_1, table_2, table_3)]
    assert not any(title.startswith("paper") for table in made for title in table.header)
    for other in (make_result("er"), make("er", class_names=["cat"])):
        with pytest.raises(ValueError, match=r"results of SplitCOCO.* have different classes or experiences"):
            table_1([make(), other])


def test_tables_2_and_3_are_in_the_papers_order_beside_its_scores(ablations):
    table = table_2(ablations())
    assert table.header[:4] == ["A & B", "R & Q", "seeds", "mAP last"]
    assert [row[:4] for row in table.rows] == [["√", "×", "1", "31.0"], ["√", "√", "1", "30.0"]]
    assert table.header[-3:] == ["paper: mAP", "paper: CF1", "paper: OF1"]
    assert [row[-3:] for row in table.rows] == [["31.52", "30.37", "34.87"], ["34.11", "35.49", "42.37"]]
    table = table_3(ablations(seeds=(0, 1)))
    weights = ["0.05 0.95 0", "0.07 0.93 0", "0.09 0.91 0", "0.07 0.93 1e4", "0.07 0.93 1e5", "0.07 0.93 1e6"]
    assert [" ".join(row[:3]) for row in table.rows] == weights
    cells = column(table)
    assert cells["mAP last"][4] == "30.0 ± 0.0"  # of the full method
    assert cells["forgetting % OF1"][0] == "25.0 ± 0.0"  # from 80 to 60
    assert cells["paper: mAP"] == ("29.90", "30.99", "29.71", "33.05", "34.11", "33.71")
    assert cells["paper: forgetting % CF1"][-1] == "21.30"
    other_weights = column(table_3(ablations(lambda_gph=1e3)))
    assert other_weights["λ₃"] == ("0", "0", "0", "100", "1e3", "1e4")
    assert other_weights["paper: mAP"] == ("29.90", "30.99", "29.71", "–", "–", "33.05")


def test_variants_have_tables_of_their_own(make_result, ablations):
    assert suffixes([make_result(), make_result("er")]) == [""]
    assert suffixes(ablations(labels=["agcn", "agcn-no-cross"])) == ["", "-2"]
    assert suffixes(ablations(labels=["agcn-lambda3-0"])) == ["-3"]
    made = {one.suffix: one.table for one in all_tables(ablations())}
    assert [row[0] for row in made[""].rows] == ["AGCN"]
    ours = [label for label, variant in ABLATIONS.items() if variant.table == "ours"]
    assert [row[0] for row in made["-variants"].rows] == ["AGCN", *map(name_of, ours)]
    assert [len(made[suffix].rows) for suffix in ("-2", "-3")] == [2, 6]


def test_captions_name_the_papers_tables_for_its_streams_only(make_result, ablations):
    papers = [f"as in the paper's Table {k}" for k in (1, 2, 3)]
    assert [caption.partition(", ")[2] for caption in captions(ablations())] == [*papers, ""]
    for results in ([make_result()], ablations("SplitScenes"), ablations(limit=100)):
        assert not any("paper" in caption for caption in captions(results))


def test_words_of_all_titles_are_explained(make_result, ablations):
    for title in ("mAP last", "CF1 nested", "forgetting", "forgetting %", "forgetting % OF1", "paper: mAP"):
        assert tables.explain(title)
    assert tables.explain("forgetting %") == tables.EXPLANATIONS["forgetting %"]
    assert tables.explain("OF1 last").startswith(f"OF1: {tables.EXPLANATIONS['OF1']} last: on all test")
    assert tables.explain("seconds") == ""


def test_thresholds_are_those_of_the_run_everywhere(make_result):
    assert tables.decision_thresholds(make_result()) == [0.5] * 4
    assert tables.decision_thresholds(make_result(thresholds=[0.1, 0.9])) == [0.1, 0.9, 0.5, 0.5]
    counts = {"thresholds": [0.1, 0.5], "true": [10] * 4, "found": [[9] * 4, [5] * 4]}
    counts["right"] = [[9] * 4, [4] * 4]
    table = tables.class_table([make_result(thresholds=[0.1, 0.5, 0.33, 0.5], decisions=counts)])
    precision_and_recall = [row[-2:] for row in table.rows]
    assert precision_and_recall[:2] == [["100.00", "90.00"], ["80.00", "40.00"]]
    assert precision_and_recall[2] == ["", ""]  # nothing was counted at 0.33


def test_the_conclusion_compares_the_best_methods_by_the_scores_of_the_table(make_result):
    at_once = make_result("multitask", nested={metric: [[], [70.0, 90.0]] for metric in METRICS})
    results = [make_result("er", last=55.0), make_result("agcn", last=45.0), make_result("ewc", last=30.0)]
    assert conclusion([at_once, *results]) == [
        "ER has the best mAP last, 55.0; AGCN follows with 45.0 (one seed). Their forgetting (lower is "
        "better) is 20.0 and 20.0.",
        "Trained on all images at once, which the others are not: Multi-Task 90.0.",
    ]
    cells = column(table_1(results))
    assert (cells["mAP last"][1:], cells["forgetting"][1:]) == (("55.0", "45.0"), ("20.0", "20.0"))
    equal = conclusion([make_result("er"), make_result()])
    assert equal[0].startswith("ER and AGCN have the best mAP last, 50.0 and 50.0 (one seed).")
    unfinished = make_result("er", nested={metric: [[99.0]] for metric in METRICS})
    for others in ([], [at_once], [unfinished], [make_result("agcn", settings={"label": "agcn-no-cross"})]):
        assert not any("best" in sentence for sentence in conclusion([make_result("lwf"), *others]))


def test_scores_that_do_not_depend_on_the_seed_are_named_once(make_result):
    same = [make_result("streaming_ridge", seed) for seed in (0, 1)]
    other = [make_result("er", seed, last=40.0 + seed) for seed in (0, 1)]
    sentences = conclusion([*same, *other])
    assert sentences[1:] == ["± 0.0: the result does not depend on the seed (StreamingRidge)."]
    assert "40.5 ± 0.7 (mean over 2 seeds)" in sentences[0]
    assert not any("seed (" in sentence for sentence in conclusion([same[0], *other]))


def test_blocks_are_compared_separately_and_the_truth_has_no_error(make_result):
    def quality(found, sizes):
        return tables.block_quality(make_result(acm=found, cooccurrence=TRUTH, classes_per_experience=sizes))

    for _, _, error, correlation in quality(TRUTH, [2, 1]).values():
        assert (error, correlation) == (0, pytest.approx(1))
    compared = quality([[1.0, 0.3, 0.5], [0.6, 1.0, 0.3], [0.3, 0.1, 1.0]], [2, 1])
    assert compared["B"] == pytest.approx((0.45, 0.4, 0.05, 1))
    assert compared["R"] == pytest.approx((0.4, 0.2, 0.2, 1))
    assert compared["Q"] == pytest.approx((0.2, 0.2, 0.2, -1))
    assert quality(TRUTH, [3])["R"] == pytest.approx([np.nan] * 4, nan_ok=True)  # there are no old classes
    constant = quality([[1.0, 0.5, 0.5], [0.5, 1.0, 0.5], [0.5, 0.5, 1.0]], [2, 1])
    assert np.isnan(constant["B"]).tolist() == [False, False, False, True]
    known = {"acm": [[1.0, 0.5], [0.25, 1.0]], "cooccurrence": [[1.0, 0.4], [0.45, 1.0]]}
    known |= {"classes_per_experience": [1, 1]}
    results = [make_result("er"), make_result(**known), make_result(seed=1, **known)]
    (row,) = tables.quality_table(results).rows  # for AGCN alone
    assert (row[0], row[4:6], row[7:9]) == ("AGCN", ["0.500 (0.400)", "0.100"], ["0.250 (0.450)", "0.200"])


def test_chosen_settings_and_each_class_of_each_run_have_a_row(make_result):
    tried = [{"lr": 0.1, "validation mAP": 40.0}, {"lr": 0.2, "validation mAP": 43.25}]
    table = tables.choices_table({"er + negatives": {"settings": {"lr": 0.2}, "tried": tried}})
    assert table.rows == [["ER + negatives", "2", "lr 0.2", "43.2", "40.0"]]
    decisions = {"thresholds": [0.1, 0.5], "true": [8, 4, 0, 2], "found": [[9] * 4, [5, 0, 3, 2]]}
    decisions["right"] = [[0] * 4, [4, 0, 0, 1]]
    table = tables.class_table([make_result("er", 3, decisions=decisions), make_result()])
    assert table.header == ["class", "experience", "method", "seed", "AP", "precision", "recall"]
    assert table.rows[:5] == [
        ["person", "1", "er", "3", "50.00", "80.00", "50.00"],
        ["bicycle", "1", "er", "3", "50.00", "", "0.00"],  # nothing was found
        ["car", "2", "er", "3", "50.00", "0.00", ""],  # there is none
        ["motorcycle", "2", "er", "3", "50.00", "50.00", "50.00"],
        ["person", "1", "agcn", "0", "50.00", "", ""],  # was not recorded
    ]
    assert len(table.rows) == 8


@pytest.mark.parametrize(
    ("cell", "markdown", "latex", "csv"),
    [
        ("-9.2 ± 0.1", "-9.2 ± 0.1", r"-9.2 $\pm$ 0.1", "-9.2 ± 0.1"),
        ("A_B × λ₃", "A_B × λ₃", r"A\_B $\times$ $\lambda_3$", "A_B × λ₃"),
        ("a|b\n[c](d) <e>", r"a\|b \[c\](d) &lt;e&gt;", "a|b [c](d) <e>", '"a|b\n[c](d) <e>"'),
        (r"\input{x} – √", r"\\input{x} – √", r"\textbackslash{}input\{x\} -- $\surd$", r"\input{x} – √"),
        ("=cmd|x", r"=cmd\|x", "=cmd|x", "'=cmd|x"),
    ],
)
def test_each_format_escapes_its_symbols(cell, markdown, latex, csv):
    table = Table(["Method", "%"], [["a", cell]])
    assert table.markdown() == f"| Method | % |\n| --- | ---: |\n| a | {markdown} |\n"
    assert table.csv() == f"Method,%\na,{csv}\n"
    assert table.latex() == (
        "\\begin{tabular}{lr}\n\\toprule\nMethod & \\% \\\\\n\\midrule\n"
        f"a & {latex} \\\\\n\\bottomrule\n\\end{{tabular}}\n"
    )
