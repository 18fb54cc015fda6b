"""The page on Avalanche's own strategies, and the script that writes its table."""

import inspect
import json
import runpy
import warnings
from pathlib import Path

import pytest
from avalanche import training
from avalanche.training.templates import SupervisedTemplate

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(DOCS / "avalanche_table.py"))


@pytest.fixture
def stored(script):
    return json.loads(script["OUTCOMES"].read_text(encoding="utf-8"))


def test_the_page_has_the_stored_outcomes(script, stored):
    assert list(stored) == list(script["STRATEGIES"])
    assert script["PAGE"].read_text(encoding="utf-8") == script["write_page"](stored)


def test_every_strategy_of_avalanche_is_in_the_table(script):
    exported = {
        name
        for name, value in vars(training).items()
        if inspect.isclass(value)
        and issubclass(value, SupervisedTemplate)
        and value is not SupervisedTemplate
    }
    assert exported <= {*script["STRATEGIES"], *script["NOT_RUN"]}


def test_a_strategy_works_or_says_in_a_sentence_what_to_use(stored):
    for outcome in stored.values():
        assert outcome in ("works", "no effect") or outcome.startswith("ValueError: Avalanche's ")
        assert outcome in ("works", "no effect") or "; use avalanche_agcn's " in outcome
    assert {"Replay, ClassBalancedBuffer", "GDumb", "EWC", "AGEM", "LwF"} <= {
        name for name, outcome in stored.items() if outcome == "works"
    }


@pytest.mark.slow
def test_the_strategies_still_do_what_is_stored(script, stored):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert script["run_strategies"]() == stored
