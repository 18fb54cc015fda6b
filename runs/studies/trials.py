"""Settings chosen on held-out train photos: as many trials for each row, proposed by Optuna."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import optuna
from declare import Entry, Part, changed_settings

from avalanche_agcn.experiments.checkpoint import write_json
from avalanche_agcn.experiments.methods import LogUniform, Space
from avalanche_agcn.experiments.results import Results
from avalanche_agcn.experiments.settings import Settings, change_settings

CHOSEN_FILE = "chosen.json"
SCORE = "validation mAP"
TRIED_WITH = "settings of the first trial"
RunAll = Callable[[Sequence[Settings]], Mapping[str, Results]]
"""Runs some settings, and returns the results by the name of the run."""


def read_choices(folder: Path) -> dict[str, dict[str, Any]]:
    """Settings that `choose` has stored; a FileNotFoundError if there are none yet."""
    path = folder / CHOSEN_FILE
    if not path.is_file():
        raise FileNotFoundError(f"no {path} with chosen settings; run that part of the study first.")
    return json.loads(path.read_text(encoding="utf-8"))


def choose(part: Part, folder: Path, run_all: RunAll) -> dict[str, dict[str, Any]]:
    """The best settings of each entry with a space; those in ``chosen.json`` are kept, the others tried.

    Trial k of all entries runs at the same time, because a trial depends on the scores of those before it.
    """
    stored = read_choices(folder) if (folder / CHOSEN_FILE).is_file() else {}
    tuned = [entry for entry in part.entries if entry.space]
    new = [entry for entry in tuned if not is_stored(part, entry, stored)]
    searches = {entry.label: Search(entry, part.trials) for entry in new}
    for k in range(part.trials):
        wanted = {}
        for entry in new:
            if k < searches[entry.label].n_trials:
                proposed = searches[entry.label].propose()
                wanted[entry.label] = trial_settings(part, entry, proposed, k)
        results = run_all(list(wanted.values()))
        for label, settings in wanted.items():
            searches[label].report(results[settings.name].summary["mAP"]["last"])
    chosen = {}
    for entry in tuned:
        if entry.label in searches:
            chosen[entry.label] = describe_choice(part, entry, searches[entry.label])
        else:
            chosen[entry.label] = stored[entry.label]
    write_json(folder / CHOSEN_FILE, chosen)
    return chosen


def describe_choice(part: Part, entry: Entry, search: Search) -> dict[str, Any]:
    """What is stored of a search: the best settings, and all trials with their scores."""
    best = max(search.tried, key=lambda trial: trial[SCORE] or 0.0)
    first = trial_settings(part, entry, _without_score(search.tried[0]), 0).as_dict()
    return {
        "settings": _without_score(best),
        SCORE: best[SCORE],
        TRIED_WITH: {name: value for name, value in first.items() if name != "device"},
        "tried": search.tried,
    }


def is_stored(part: Part, entry: Entry, stored: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a stored choice is from as many trials in the same space, with the same other settings.

    Which sampler proposed them does not matter.
    """
    if entry.label not in stored:
        return False
    choice = stored[entry.label]
    tried = [_without_score(trial) for trial in choice["tried"]]
    if len(tried) != count_trials(entry.space, part.trials):
        return False
    if not all(is_inside(trial, entry.space) for trial in tried):
        return False
    if TRIED_WITH not in choice:  # choices of older versions
        return True
    return not changed_settings(choice[TRIED_WITH], trial_settings(part, entry, tried[0], 0))


def trial_settings(part: Part, entry: Entry, proposed: Mapping[str, Any], k: int) -> Settings:
    """Settings of trial k of an entry."""
    settings = {**entry.settings, **part.trial_settings, **proposed}
    return change_settings(
        part.base,
        **settings,
        validation_size=part.validation_size,
        seed=part.trial_seed,
        label=f"{entry.label} {k}",
    )


def count_trials(space: Space, n: int) -> int:
    """Number of trials: ``n``, or all combinations if the space has fewer."""
    combinations = _combinations(space)
    return n if combinations is None else min(n, len(combinations))


def is_inside(trial: Mapping[str, Any], space: Space) -> bool:
    """Whether a trial has one value of each choice of the space, and nothing else."""
    left = dict(trial)
    for name, choice in space.items():
        if isinstance(choice, LogUniform):
            if name not in left or not choice.low <= left.pop(name) <= choice.high:
                return False
        else:
            fitting = [dict(one) for one in choice if dict(one).items() <= left.items()]
            if not fitting:
                return False
            for chosen in fitting[0]:
                del left[chosen]
    return not left


class Search:
    """Trials of one entry: `propose` settings, then `report` their score.

    The sampler's seed follows from the label, so an interrupted search proposes the same again.

    Attributes:
        tried: settings with their score, in order.
    """

    def __init__(self, entry: Entry, n: int) -> None:
        self.space = entry.space
        self.n_trials = count_trials(entry.space, n)
        self.tried: list[dict[str, Any]] = []
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=entry.trial_seed, n_startup_trials=max(1, n // 2))
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._trial: optuna.Trial | None = None
        combinations = _combinations(self.space)
        if combinations is not None and len(combinations) <= n:  # then all are tried
            for combination in combinations:
                self._study.enqueue_trial(combination)

    def propose(self) -> dict[str, Any]:
        """Settings to try next."""
        self._trial = self._study.ask()
        proposed: dict[str, Any] = {}
        for name, choice in self.space.items():
            if isinstance(choice, LogUniform):
                value = self._trial.suggest_float(name, choice.low, choice.high, log=True)
                rounded = float(f"{value:.1e}")  # two digits are enough, and readable
                proposed[name] = min(max(rounded, choice.low), choice.high)
            else:
                index = self._trial.suggest_categorical(name, list(range(len(choice))))
                proposed.update(choice[index])
        self.tried.append(proposed)
        return dict(proposed)

    def report(self, score: float | None) -> None:
        """Store the score of the last proposal."""
        self.tried[-1][SCORE] = score
        assert self._trial is not None
        self._study.tell(self._trial, score or 0.0)


def _combinations(space: Space) -> list[dict[str, int]] | None:
    """All combinations of a space, as an index of each choice; None if some choice is continuous."""
    sizes = []
    for choice in space.values():
        if isinstance(choice, LogUniform):
            return None
        sizes.append(range(len(choice)))
    return [dict(zip(space, indices, strict=True)) for indices in product(*sizes)]


def _without_score(trial: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in trial.items() if name != SCORE}
