import json
import re
import runpy
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from avalanche_agcn.experiments.methods import METHODS

SPEED = Path(__file__).parents[2] / "speed"
SCRIPTS = sorted(path.stem for path in SPEED.glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))


@pytest.fixture
def run_all(load):
    return load("run_all")


@pytest.fixture
def stored(load, run_all):
    """Results with a row of every script, the last one over its bound."""
    row, topic = load("measure").Row, load("measure").Topic
    scripts = {
        name: [asdict(topic(f"About {name}", "How.", [row(name, 1.0, 1.5)]))] for name in run_all.SCRIPTS
    }
    scripts[run_all.SCRIPTS[-1]] = [asdict(topic("Last", "How.", [row("too slow", 2.0, 1.5, note="why")]))]
    return {"conditions": run_all.describe_conditions(), "scripts": scripts}


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_answers_help(load, capsys, monkeypatch, script):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(str(SPEED / f"{script}.py"), run_name="__main__")
    assert exit_.value.code == 0
    assert f"python speed/{script}.py" in capsys.readouterr().out


def test_the_page_has_every_row_and_the_verdict_and_names_scripts_without_numbers(run_all, stored):
    assert sorted([*run_all.SCRIPTS, "run_all"]) == SCRIPTS
    page = run_all.make_tables(stored)
    for script in run_all.SCRIPTS[:-1]:
        assert f"## About {script}\nHow. (`{script}.py`)\n" in page
        assert f"| {script} | 1 | ≤ 1.5 | ok |  |" in page
    assert "| too slow | 2 | ≤ 1.5 | **missed** | why |" in page
    n = len(run_all.SCRIPTS)
    assert page.startswith(f"{n - 1} of {n} bounds hold. Measured on {stored['conditions']}.\n")
    assert "Not measured" not in page
    del stored["scripts"]["graph"]
    assert "## Not measured\n`graph.py`: failed or not run.\n" in run_all.make_tables(stored)


def test_stored_numbers_are_read_only_under_the_same_conditions(run_all, stored, tmp_path, monkeypatch):
    page = tmp_path / "README.md"
    page.write_text(f"before\n{run_all.BEGIN}old\n{run_all.END}after\n")
    monkeypatch.setattr(run_all, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(run_all, "PAGE", page)
    with pytest.raises(SystemExit, match="run without --only first"):
        run_all.main(["--only"])
    (tmp_path / "results.json").write_text(json.dumps(stored), encoding="utf-8")
    assert run_all.read_results(stored["conditions"]) == stored
    assert run_all.main(["--only"]) == 1  # writes the page alone; a bound is missed
    before, tables, after = re.split(r"<!-- .* -->\n", page.read_text(encoding="utf-8"))
    assert (before, tables, after) == ("before\n", run_all.make_tables(stored), "after\n")
    with pytest.raises(SystemExit, match="not comparable"):
        run_all.read_results("another machine")


def test_scripts_measured_again_replace_their_rows_unless_they_fail(run_all, stored, tmp_path, monkeypatch):
    monkeypatch.setattr(run_all, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(run_all, "PAGE", tmp_path / "README.md")
    (tmp_path / "README.md").touch()
    (tmp_path / "results.json").write_text(json.dumps(stored), encoding="utf-8")
    measured = {"graph": stored["scripts"]["methods"], "memories": None}
    monkeypatch.setattr(run_all, "run_script", lambda script, options, quick: measured[script.stem])
    assert run_all.main(["--only", "graph", "memories"]) == 1
    scripts = run_all.read_results()["scripts"]
    assert scripts["graph"] == scripts["methods"] == stored["scripts"]["methods"]
    assert "memories" not in scripts


def test_the_real_stream_is_measured_only_with_data_and_gets_its_paths(
    run_all, stored, tmp_path, monkeypatch
):
    monkeypatch.setattr(run_all, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(run_all, "PAGE", tmp_path / "README.md")
    (tmp_path / "README.md").touch()
    (tmp_path / "results.json").write_text(json.dumps(stored), encoding="utf-8")
    calls = []
    monkeypatch.setattr(
        run_all,
        "run_script",
        lambda script, options, quick: (calls.append((script.stem, options)), [])[1],
    )
    run_all.main(["--only", "graph", "real_stream"])
    assert calls == [("graph", [])]
    assert run_all.read_results()["scripts"]["real_stream"] == stored["scripts"]["real_stream"]
    calls.clear()
    given = ["--data", "photos", "--split-lists", "lists", "--cache", "cache"]
    run_all.main(["--only", "graph", "real_stream", *given])
    assert calls == [("graph", []), ("real_stream", given)]


def test_rows_of_a_script_are_collected_unless_it_fails(run_all, tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    measure = 'lambda arguments: [Topic("Title", "About", [Row("a", arguments.repeats, 1)])]'
    imports = "import sys; from measure import Row, Topic, run_script"
    script.write_text(f'{imports}\nsys.exit(run_script("", {measure}, repeats=9))')
    monkeypatch.setenv("PYTHONPATH", str(SPEED))
    (topic,) = run_all.run_script(script, quick=True)
    assert (topic["title"], topic["rows"][0]["measured"], topic["rows"][0]["bound"]) == ("Title", 2, 1)
    script.write_text("raise SystemExit('broken')")
    assert run_all.run_script(script, quick=False) is None


def test_the_committed_page_matches_the_stored_numbers(run_all):
    page = (SPEED / "README.md").read_text(encoding="utf-8")
    assert run_all.insert(run_all.make_tables(run_all.read_results()), page) == page


def test_every_method_is_measured_with_settings_that_it_takes(load):
    passes = load("methods").PASSES
    assert set(passes) == set(METHODS)
    for name, (settings, _, _) in passes.items():
        assert set(settings) <= set(METHODS[name].arguments)
