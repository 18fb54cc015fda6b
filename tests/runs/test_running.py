"""Trials with one budget, the choice among them, the runs that follow, and their table."""

import json
import multiprocessing
import re
import shutil
import signal
from dataclasses import replace
from functools import partial

import pytest

from avalanche_agcn.experiments.methods import LogUniform
from avalanche_agcn.experiments.results import read_table
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import change_settings, make_settings

TINY = {"n_classes": 4, "n_experiences": 2, "n_train": 80, "n_test": 30, "image_size": 16}
SPACE = {"lr": LogUniform(1e-4, 1e-2), "weights": [{"lambda_cls": 0.3}, {"lambda_cls": 0.5}]}


def propose_all(studies, label, n, space):
    search = studies.trials.Search(studies.declare.Entry(label=label, space=space), n)
    proposed = []
    for _ in range(search.n_trials):
        proposed.append(search.propose())
        search.report(50.0 + 1000 * proposed[-1].get("lr", 0.0))
    return proposed


def test_trials_are_the_same_each_time_differ_between_entries_and_lie_in_the_space(studies):
    trials = propose_all(studies, "a", 20, SPACE)
    assert trials == propose_all(studies, "a", 20, SPACE)
    assert trials != propose_all(studies, "b", 20, SPACE)
    assert {trial["lambda_cls"] for trial in trials} == {0.3, 0.5}
    assert all(studies.trials.is_inside(trial, SPACE) for trial in trials)
    outside = [{"lr": 1e-3}, {"lr": 1.0, "lambda_cls": 0.3}, {"lr": 1e-3, "lambda_cls": 0.4}]
    outside += [{"lr": 1e-3, "lambda_cls": 0.3, "pool": "avg"}]
    assert not any(studies.trials.is_inside(trial, SPACE) for trial in outside)


def test_later_trials_follow_the_scores_of_earlier_ones(studies):
    rates = [trial["lr"] for trial in propose_all(studies, "a", 40, SPACE)]  # higher rates score better
    assert sum(rates[20:]) > 1.3 * sum(rates[:20])


def test_a_space_with_few_combinations_is_tried_completely(studies):
    small = {"lr": [{"lr": 1.0}, {"lr": 2.0}], "pool": [{"pool": "avg"}, {"pool": "max"}]}
    every = [{"lr": lr, "pool": pool} for lr in (1.0, 2.0) for pool in ("avg", "max")]
    assert propose_all(studies, "a", 4, small) == every
    assert propose_all(studies, "a", 12, small) == every
    assert len(propose_all(studies, "a", 3, small)) == 3


def make_part(studies):
    Entry = studies.declare.Entry
    return studies.declare.Part(
        base=make_settings("scenes", **TINY),
        entries=[
            Entry(label="tuned", settings={"method": "finetuning"}, space={"lr": LogUniform(1e-6, 1e-2)}),
            Entry(label="fixed", settings={"method": "finetuning", "lr": 2e-3}),
            Entry(label="once", settings={"method": "multitask_ridge"}, seeds=(0,)),
        ],
        trials=3,
        seeds=(0, 1),
    )


def run(studies, part, out):
    """Nested scores of a part's runs, and how many runs were missing each time."""
    messages: list[str] = []
    results = studies.running.run_part(part, out, log=messages.append)
    missing = re.findall(r"(\d+) runs, (\d+) of them missing", " ".join(messages))
    return [result.nested for result in results], [tuple(map(int, counts)) for counts in missing]


TRIALS = [(1, 1)] * 3


@pytest.fixture(scope="module")
def finished(studies, tmp_path_factory):
    """Folder, nested scores and numbers of missing runs of a part."""
    out = tmp_path_factory.mktemp("study")
    return out, *run(studies, make_part(studies), out)


def test_every_entry_runs_with_its_seeds_and_the_settings_of_the_best_trial(studies, finished):
    out, nested, missing = finished
    assert missing == [*TRIALS, (5, 5)]
    chosen = studies.trials.read_choices(out)["tuned"]
    assert len(chosen["tried"]) == 3
    best = max(chosen["tried"], key=lambda trial: trial["validation mAP"])
    assert chosen["settings"] == {"lr": best["lr"]}
    for path in (out / "trials").rglob("results.json"):
        settings = json.loads(path.read_text())["settings"]
        assert (settings["validation_size"], settings["seed"]) == (0.2, 100)  # held-out train images
    runs = {(result.label, result.seed): result for result in read_table(out / "results.jsonl")}
    assert [result.nested for result in runs.values()] == nested
    assert list(runs) == [("tuned", 0), ("fixed", 0), ("once", 0), ("tuned", 1), ("fixed", 1)]
    for seed in (0, 1):
        assert runs["tuned", seed].settings["lr"] == best["lr"]
        assert runs["fixed", seed].settings["lr"] == 2e-3


def test_only_the_rows_asked_for_are_run_and_the_table_keeps_the_order_of_the_part(studies, tmp_path):
    part = replace(make_part(studies), trials=0, seeds=(0,))
    part = replace(part, entries=[replace(entry, space={}) for entry in part.entries])
    run_part = partial(studies.running.run_part, part, tmp_path, log=lambda message: None)
    assert [result.label for result in run_part(rows=["once"])] == ["once"]
    assert [result.label for result in run_part(rows=["fixed"])] == ["fixed", "once"]


def test_finished_runs_are_not_repeated_and_leave_no_state(studies, finished):
    out, nested, _ = finished
    assert list(out.rglob("state.bin")) == []
    files = {path: path.stat().st_mtime_ns for path in out.rglob("results.*")}
    assert run(studies, make_part(studies), out)[0] == nested
    assert {path: path.stat().st_mtime_ns for path in out.rglob("results.*")} == files


def test_runs_in_the_table_and_stored_choices_need_no_folder(studies, finished, tmp_path):
    out, nested, _ = finished
    for name in ("results.jsonl", "chosen.json"):
        shutil.copy(out / name, tmp_path)
    part = make_part(studies)
    found, missing = run(studies, part, tmp_path)
    assert found == nested
    assert missing == [(0, 0)] * 3 + [(5, 0)]
    assert not list(tmp_path.rglob("results.json"))
    stored = studies.trials.read_choices(tmp_path)
    other = change_settings(part.base, loss="asl")
    for change in ({"trials": 4}, {"trial_seed": 7}, {"validation_size": 0.3}, {"base": other}):
        assert not studies.trials.is_stored(replace(part, **change), part.entries[0], stored), change
    assert studies.trials.is_stored(replace(part, seeds=(5,)), part.entries[0], stored)
    narrow = replace(part.entries[0], space={"lr": LogUniform(1e-9, 1e-8)})
    assert not studies.trials.is_stored(part, narrow, stored)


def test_a_run_that_was_finished_but_not_yet_added_is_added(studies, finished, tmp_path):
    out, nested, _ = finished
    shutil.copytree(out, tmp_path / "study")
    lines = (out / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "study" / "results.jsonl").write_text("".join(lines[:3]))
    found, missing = run(studies, make_part(studies), tmp_path / "study")
    assert (found, missing[-1]) == (nested, (5, 0))
    assert (tmp_path / "study" / "results.jsonl").read_text() == "".join(lines)


def test_the_table_has_a_line_as_soon_as_a_run_ends(studies, tmp_path):
    broken = studies.declare.Entry(label="broken", settings={"method": "finetuning", "backbone": "nothing"})
    part = make_part(studies)
    with pytest.raises(ValueError, match="There is no backbone 'nothing'"):
        run(studies, replace(part, entries=[part.entries[1], broken], seeds=(0,)), tmp_path)
    assert [result.name for result in read_table(tmp_path / "results.jsonl")] == ["fixed-seed0"]


def test_finished_runs_of_other_folders_are_collected_without_their_paths(studies, tmp_path):
    part = replace(make_part(studies), entries=make_part(studies).entries[1:2])
    vectors = tmp_path / "elsewhere" / "glove.txt"
    base = change_settings(part.base, word_vectors="glove.txt")
    rate = {"method": "finetuning", "lr": 2e-3}
    fixed = change_settings(part.base, **rate, label="fixed", word_vectors=str(vectors))
    other = change_settings(fixed, seed=1, lr=1e-3)
    unknown = change_settings(fixed, label="unknown")
    for settings in (fixed, other, unknown):
        Run(settings, tmp_path / "runs", log=lambda text: None).run()
    messages: list[str] = []
    out = tmp_path / "tables"
    parts = {"first": replace(part, base=base), "second": replace(part, base=base, entries=[])}
    collect = studies.running.collect
    assert collect(parts, out, tmp_path / "runs", log=messages.append) == 1
    assert [path.name for path in out.iterdir()] == ["first"]
    (result,) = read_table(out / "first" / "results.jsonl")
    assert (result.name, result.settings["word_vectors"]) == ("fixed-seed0", "glove.txt")
    assert str(tmp_path) not in (out / "first" / "results.jsonl").read_text()
    assert [message.partition(" is left out; ")[2] for message in messages] == [
        "it differs from the part first in lr: 0.001, now 0.002.",
        "it differs from the part first in no such row.",
    ]
    assert collect(parts, out, tmp_path / "runs", log=messages.append) == 0


def test_entries_that_would_share_a_folder_are_rejected(studies, tmp_path):
    Entry = studies.declare.Entry
    entries = [Entry(label=label, settings={"method": "finetuning"}) for label in ("a b", "a-b")]
    with pytest.raises(ValueError, match="several runs would have the folder a-b-seed0"):
        run(studies, replace(make_part(studies), entries=entries), tmp_path)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_is_named_and_waiting_runs_are_cancelled(studies, tmp_path, monkeypatch, jobs):
    # Forked: spawned processes would import Avalanche once more, which takes seconds.
    monkeypatch.setattr(studies.running, "get_context", lambda method: multiprocessing.get_context("fork"))
    broken = studies.declare.Entry(label="broken", settings={"method": "finetuning", "backbone": "nothing"})
    part = replace(make_part(studies), entries=[broken, make_part(studies).entries[1]], seeds=range(8))
    messages: list[str] = []
    with pytest.raises(ValueError, match="There is no backbone 'nothing'"):
        studies.running.run_part(part, tmp_path, jobs=jobs, log=messages.append)
    assert re.fullmatch(r"broken-seed\d failed\. .*", messages[-1])
    assert len(list(tmp_path.rglob("results.json"))) < 8


def test_a_killed_study_leaves_no_worker_and_continues_to_the_same_table(studies, finished, tmp_path, fork):
    parent = fork(partial(studies.running.run_part, make_part(studies), tmp_path, jobs=2))
    for line in parent.output:
        if line.startswith("1 of 5: "):
            break
    parent.kill()
    assert parent.wait()[1] == -signal.SIGKILL  # and the workers, which have the same output, have ended
    assert len(read_table(tmp_path / "results.jsonl")) in (1, 2)
    nested, missing = run(studies, make_part(studies), tmp_path)
    assert nested == finished[1]
    assert missing[-1][1] < 5
