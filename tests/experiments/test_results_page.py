"""The page of a study, from stored results."""

import pytest

from avalanche_agcn.experiments.results import find_results
from avalanche_agcn.experiments.results_page import fill_in, main, quality_table
from avalanche_agcn.experiments.settings import make_settings
from avalanche_agcn.experiments.study import Between, Entry, Study
from avalanche_agcn.experiments.tables import mean_and_deviation

TINY = {"n_classes": 4, "n_experiences": 2, "n_train": 80, "n_test": 30, "image_size": 16}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    entries = [
        Entry(label="finetuning", settings={"method": "finetuning"}, space={"lr": Between(1e-4, 1e-2)}),
        Entry(label="agcn", settings={"method": "agcn"}),
        Entry(label="agcn + er", settings={"method": "agcn", "memory": 8, "memory_batch": 4}),
    ]
    study = Study(base=make_settings("scenes", **TINY), entries=entries, trials=2, seeds=(0, 1))
    results = study.go(folder / "frozen", say=lambda message: None)
    (folder / "discussion.md").write_text("# What came out\n\nIt is [[frozen: agcn: mAP last]].\n")
    return folder, results


def test_the_page_has_words_tables_choices_and_figures(study, tmp_path):
    folder, results = study
    page = tmp_path / "RESULTS.md"
    assert main([str(folder), "--out", str(page), "--figures", str(tmp_path / "figures")]) == 0
    text = page.read_text()
    own = [r.summary["mAP"]["last"] for r in results if r.label == "agcn"]
    assert text.startswith(f"# What came out\n\nIt is {mean_and_deviation(own)}.\n")
    last = [r.summary["mAP"]["last"] for r in results if r.label == "finetuning"]
    assert f"| Fine-Tuning | 2 | {sum(last) / 2:.1f} ±" in text
    assert "| AGCN + ER | 2 |" in text
    assert "### Chosen settings" in text
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {f"{folder.name}-frozen-{kind}.png" for kind in ("mAP", "classes", "acm")}
    assert all(f"(figures/{name})" in text for name in drawn)


def test_page_and_figures_may_lie_apart(study, tmp_path):
    folder, _ = study
    page = tmp_path / "docs" / "RESULTS.md"
    assert main([str(folder), "--out", str(page), "--figures", str(tmp_path / "pictures")]) == 0
    assert f"(../pictures/{folder.name}-frozen-mAP.png)" in page.read_text()


def test_a_report_of_a_studys_folder_leaves_its_trials_out(study):
    folder, results = study
    assert len(list((folder / "frozen").rglob("results.json"))) == len(results) + 2
    assert [r.label for r in find_results([folder])].count("finetuning") == 2
    assert len(find_results([folder])) == len(results)


def test_the_same_results_give_the_same_page(study, tmp_path):
    folder, _ = study
    pages = []
    for name in ("a.md", "b.md"):
        main([str(folder), "--out", str(tmp_path / name), "--figures", str(tmp_path / "figures")])
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


def test_figures_in_the_text_are_those_of_the_results(study):
    _, results = study
    last = [r.summary["mAP"]["last"] for r in results if r.label == "agcn + er"]
    text = fill_in("It has [[frozen: agcn + er: mAP last]] in the end.", {"frozen": results})
    assert text == f"It has {mean_and_deviation(last)} in the end."


@pytest.mark.parametrize(
    "name", ["whole: agcn: mAP last", "frozen: gone: mAP last", "frozen: agcn: mAP lost"]
)
def test_a_figure_that_is_not_there_is_named(study, name):
    _, results = study
    with pytest.raises(ValueError, match=name):
        fill_in(f"[[{name}]]", {"frozen": results})


def test_matrices_are_compared_for_agcn_alone(study):
    _, results = study
    assert [row[0] for row in quality_table(results).rows] == ["AGCN", "AGCN + ER"]


def test_a_folder_without_a_study_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "run the study first" in capsys.readouterr().err
