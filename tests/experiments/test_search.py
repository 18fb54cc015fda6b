"""Trials with one budget, the choice among them, and the runs that follow."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from avalanche_agcn.experiments.methods import LogUniform
from avalanche_agcn.experiments.results import read_table
from avalanche_agcn.experiments.search import Entry, Study, read_choices
from avalanche_agcn.experiments.settings import change_settings, make_settings

TINY = {"n_classes": 4, "n_experiences": 2, "n_train": 80, "n_test": 30, "image_size": 16}


def test_trials_are_the_same_each_time_and_differ_between_entries():
    space = {"lr": LogUniform(1e-4, 1e-2), "weights": [{"lambda_cls": 0.3}, {"lambda_cls": 0.5}]}
    entry = Entry(label="a", space=space)
    trials = entry.draw_trials(20)
    assert trials[:5] == entry.draw_trials(5)
    assert trials != Entry(label="b", space=space).draw_trials(20)
    assert {trial["lambda_cls"] for trial in trials} == {0.3, 0.5}
    assert all(set(trial) == {"lr", "lambda_cls"} for trial in trials)
    small = {"lr": [{"lr": 1.0}, {"lr": 2.0}], "pool": [{"pool": "avg"}, {"pool": "max"}]}
    every = [{"lr": lr, "pool": pool} for lr in (1.0, 2.0) for pool in ("avg", "max")]
    assert Entry(label="a", space=small).draw_trials(4) == every


def make_study():
    return Study(
        base=make_settings("scenes", **TINY),
        entries=[
            Entry(label="tuned", settings={"method": "finetuning"}, space={"lr": LogUniform(1e-6, 1e-2)}),
            Entry(label="fixed", settings={"method": "finetuning", "lr": 2e-3}),
        ],
        trials=3,
        seeds=(0, 1),
    )


def run(study, out):
    """Nested scores of a study's runs, and how many runs were missing."""
    messages: list[str] = []
    results = study.run(out, log=messages.append)
    missing = re.findall(r"(\d+) runs, (\d+) of them missing", " ".join(messages))
    return [result.nested for result in results], [tuple(map(int, counts)) for counts in missing]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder, nested scores and numbers of missing runs of a study."""
    out = tmp_path_factory.mktemp("study")
    return out, *run(make_study(), out)


def test_every_entry_runs_with_every_seed_and_the_settings_of_the_best_trial(finished):
    out, nested, missing = finished
    assert missing == [(3, 3), (4, 4)]
    chosen = read_choices(out)["tuned"]
    assert len(chosen["tried"]) == 3
    best = max(chosen["tried"], key=lambda trial: trial["validation mAP"])
    assert chosen["settings"] == {"lr": best["lr"]}
    for path in (out / "trials").rglob("results.json"):
        settings = json.loads(path.read_text())["settings"]
        assert (settings["validation_size"], settings["seed"]) == (0.2, 100)  # held-out train images
    runs = {(result.label, result.seed): result for result in read_table(out / "results.jsonl")}
    assert [result.nested for result in runs.values()] == nested
    assert set(runs) == {(label, seed) for label in ("tuned", "fixed") for seed in (0, 1)}
    for seed in (0, 1):
        assert runs["tuned", seed].settings["lr"] == best["lr"]
        assert runs["fixed", seed].settings["lr"] == 2e-3


def test_finished_runs_are_not_repeated_and_leave_no_state(finished):
    out, nested, _ = finished
    assert list(out.rglob("state.bin")) == []
    files = {path: path.stat().st_mtime_ns for path in out.rglob("results.json")}
    assert run(make_study(), out) == (nested, [(0, 0), (4, 0)])
    assert {path: path.stat().st_mtime_ns for path in out.rglob("results.json")} == files


def test_runs_in_the_table_and_choices_of_the_same_trials_need_no_folder(finished, tmp_path):
    out, nested, _ = finished
    for name in ("results.jsonl", "chosen.json"):
        shutil.copy(out / name, tmp_path)
    assert run(make_study(), tmp_path) == (nested, [(0, 0), (4, 0)])
    assert not list(tmp_path.rglob("results.json"))
    stored, other = read_choices(tmp_path), change_settings(make_study().base, loss="asl")
    tuned = make_study().entries[0]
    for change in ({"trials": 4}, {"trial_seed": 7}, {"validation_size": 0.3}, {"base": other}):
        assert not replace(make_study(), **change)._has_same_trials(tuned, stored), change
    assert replace(make_study(), seeds=(5,))._has_same_trials(tuned, stored)


def test_entries_that_would_share_a_folder_are_rejected(tmp_path):
    entries = [Entry(label=label, settings={"method": "finetuning"}) for label in ("a b", "a-b")]
    with pytest.raises(ValueError, match="several runs would have the folder a-b-seed0"):
        replace(make_study(), entries=entries).run(tmp_path)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_is_named_and_waiting_runs_are_cancelled(tmp_path, jobs):
    broken = Entry(label="broken", settings={"method": "finetuning", "backbone": "nothing"})
    study = replace(make_study(), entries=[broken, make_study().entries[-1]], seeds=range(8))
    messages: list[str] = []
    with pytest.raises(ValueError, match="There is no backbone 'nothing'"):
        study.run(tmp_path, jobs=jobs, log=messages.append)
    assert re.fullmatch(r"broken-seed\d failed\. .*", messages[-1])
    assert len(list(tmp_path.rglob("results.json"))) < 8


IN_TWO_PROCESSES = """
import sys
from pathlib import Path
from test_search import make_study
if __name__ == "__main__":
    make_study().run(Path(sys.argv[1]), jobs=2)
"""


def test_a_killed_study_leaves_no_worker_and_continues_to_the_same_results(finished, tmp_path):
    script, out = tmp_path / "script.py", tmp_path / "study"
    script.write_text(IN_TWO_PROCESSES)
    command = [sys.executable, str(script), str(out)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    assert "3 runs, 3 of them missing" in parent.stdout.readline()
    assert parent.stdout.readline().startswith("1 of 3: ")
    parent.kill()
    parent.communicate(timeout=60)  # until the workers, which have the same standard output, have ended
    assert run(make_study(), out)[0] == finished[1]
