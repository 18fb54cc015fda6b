from dataclasses import replace

import pytest

from avalanche_agcn.experiments.ablations import FULL, OF_OUR_OWN, VARIANTS, WEIGHTS, variants_of
from avalanche_agcn.experiments.paper import TABLE_3
from avalanche_agcn.experiments.settings import make_settings


def test_with_the_papers_settings_the_weights_are_those_of_its_table_3():
    paper = make_settings("coco")
    used = []
    for name in WEIGHTS:
        change = VARIANTS[name](paper)
        names = ("lambda_cls", "lambda_dst", "lambda_gph")
        used.append(tuple(change.get(weight, getattr(paper, weight)) for weight in names))
    assert used == list(TABLE_3) == list(WEIGHTS.values())


def test_other_settings_are_varied_around_their_own_weights():
    settings = make_settings("scenes", lambda_cls=0.35, lambda_dst=0.65, lambda_gph=1e3)
    assert VARIANTS["agcn 9/7×λ₁ 0×λ₃"](settings) == pytest.approx(
        {"lambda_cls": 0.45, "lambda_dst": 0.55, "lambda_gph": 0.0}
    )
    assert VARIANTS["agcn 10×λ₃"](settings) == pytest.approx(
        {"lambda_cls": 0.35, "lambda_dst": 0.65, "lambda_gph": 1e4}
    )
    assert VARIANTS[FULL](settings) == {}


def test_the_variants_of_our_own_are_those_the_paper_does_not_have():
    assert OF_OUR_OWN[:2] == ["agcn identity graph", "agcn random word vectors"]
    assert not {FULL, "agcn without R and Q", *WEIGHTS} & set(OF_OUR_OWN)


def test_variants_that_change_nothing_are_left_out_but_for_the_full_method():
    settings = make_settings("coco")
    made = variants_of(settings)
    assert set(VARIANTS) - set(made) == {"agcn word vectors as they are"}
    assert made[FULL] == replace(settings, label=FULL)
    assert made["agcn without R and Q"].cross_blocks is False
