import json
import re

import pytest

from avalanche_agcn.experiments.ablations import VARIANTS
from avalanche_agcn.experiments.cli import main, make_parser, settings_of
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.report import main as report
from avalanche_agcn.experiments.settings import make_settings


def wanted(*options, variants=None):
    return settings_of(make_parser("coco", None).parse_args(options), variants)


def test_without_data_it_is_drawn_scenes_and_with_data_the_papers_settings():
    assert wanted()[0].benchmark == "scenes"
    paper = wanted("--data", "somewhere")[0]
    assert (paper.benchmark, paper.backbone, paper.lambda_gph) == ("coco", "resnet101", 1e5)


def test_every_method_with_every_seed():
    names = [settings.name for settings in wanted("--method", "all", "--seed", "0", "2")]
    assert names == [f"{method}-seed{seed}" for method in METHODS for seed in (0, 2)]


def test_the_command_line_comes_before_the_config(tmp_path):
    (tmp_path / "run.toml").write_text("lr = 0.5\nbatch_size = 3\nseed = 4\n")
    settings = wanted("--config", str(tmp_path / "run.toml"), "--lr", "0.25")[0]
    assert (settings.lr, settings.batch_size, settings.seed) == (0.25, 3, 4)


def test_results_repeat_their_run(tmp_path):
    main("coco", None, ["--smoke", "--method", "lwf", "--seed", "3", "--out", str(tmp_path / "a")])
    first = tmp_path / "a" / "lwf-seed3" / "results.json"
    main("coco", None, ["--config", str(first), "--out", str(tmp_path / "b")])
    second = tmp_path / "b" / "lwf-seed3" / "results.json"
    contents = [json.loads(path.read_text()) for path in (first, second)]
    assert contents[0]["nested"] == contents[1]["nested"]
    assert contents[0]["settings"] == contents[1]["settings"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "magic"], r"unknown methods \['magic'\]; known are multitask"),
        (["--config", "absent.toml"], "absent.toml"),
    ],
)
def test_a_wrong_option_is_named(options, message, capsys):
    with pytest.raises(SystemExit):
        main("coco", None, options)
    assert re.search(message, capsys.readouterr().err)


def test_a_run_that_cannot_go_on_says_why_and_keeps_what_was_done(tmp_path, capsys):
    assert main("coco", None, ["--data", str(tmp_path / "absent"), "--backbone", "small"]) == 1
    error = capsys.readouterr().err
    assert "Stopped:" in error
    assert "--resume goes on from there" in error


def test_variants_of_the_ablations_are_runs_of_their_own():
    settings = wanted("--seed", "0", "1", variants=VARIANTS)
    assert len({s.name for s in settings}) == 2 * (len(VARIANTS) - 1)  # its own word vectors are orthogonal
    assert "agcn word vectors as they are" in {s.label for s in settings}
    assert "agcn word vectors made orthogonal" not in {s.label for s in settings}
    by_label = {s.label: s for s in settings}
    assert not by_label["agcn without R and Q"].cross_blocks
    assert by_label["agcn 0.1×λ₃"].lambda_gph == pytest.approx(0.1 * by_label["agcn"].lambda_gph)
    assert by_label["agcn 0×λ₃"].lambda_gph == 0


def test_tables_and_figures_come_from_stored_results(tmp_path, capsys):
    main("coco", None, ["--smoke", "--method", "multitask", "agcn", "--out", str(tmp_path / "runs")])
    run_output = capsys.readouterr().out
    assert "not COCO" in run_output
    assert report([str(tmp_path / "runs"), "--out", str(tmp_path / "report")]) == 0
    table = (tmp_path / "report" / "table-SplitScenes.md").read_text()
    assert table in run_output
    assert table in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "report").iterdir()}
    drawn = ("mAP", "classes", "acm-agcn", "pictures-agcn", "pictures-multitask")
    figures = {f"SplitScenes-{name}.png" for name in drawn}
    assert names == figures | {f"table-SplitScenes.{suffix}" for suffix in ("md", "csv", "tex")}
    assert all((tmp_path / "report" / name).read_bytes().startswith(b"\x89PNG") for name in figures)


def test_a_report_of_nothing_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        report([str(tmp_path)])
    assert "no results.json below" in capsys.readouterr().err


def test_any_setting_can_be_given_by_name():
    arguments = make_parser("coco", None).parse_args(["--set", "pool=avg", "lr=1e-2", "cross_blocks=false"])
    (settings,) = settings_of(arguments)
    assert (settings.pool, settings.lr, settings.cross_blocks) == ("avg", 1e-2, False)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("cross_blocks=False", False),
        ("cross_blocks=true", True),
        ("lr=.001", 0.001),
        ("lr=1.", 1.0),
        ("limit=None", None),
        ("limit=none", None),
        ("limit=30", 30),
        ("label=my own", "my own"),
        ("data='a b'", "a b"),
    ],
)
def test_values_may_be_written_as_in_toml_or_python(given, value):
    (settings,) = wanted("--set", given)
    assert getattr(settings, given.partition("=")[0]) == value


def test_settings_given_apart_are_all_taken():
    (settings,) = wanted("--set", "pool=avg", "lr=0.5", "--set", "lr_head=1e-3", "lr=0.25")
    assert (settings.pool, settings.lr_head, settings.lr) == ("avg", 1e-3, 0.25)


@pytest.fixture
def labelled(tmp_path):
    """A results.json of a run with a label of its own and many settings."""
    settings = make_settings("scenes", method="ewc", label="mine", n_train=3000).as_dict()
    (tmp_path / "results.json").write_text(json.dumps({"settings": settings}))
    return str(tmp_path / "results.json")


def test_the_label_of_a_config_is_not_another_methods(labelled):
    assert [settings.name for settings in wanted("--config", labelled)] == ["mine-seed0"]
    runs = wanted("--config", labelled, "--method", "er", "prs")
    assert [(settings.name, settings.n_train) for settings in runs] == [
        ("er-seed0", 3000),
        ("prs-seed0", 3000),
    ]


def test_smoke_is_small_whatever_the_config_says(labelled):
    assert wanted("--config", labelled, "--smoke")[0].n_train == 64
    assert wanted("--config", labelled, "--smoke", "--limit", "5")[0].limit == 5


@pytest.mark.parametrize(
    "options",
    [["--seed", "1", "1"], ["--method", "er", "prs", "--set", "label=mine"]],
)
def test_two_runs_with_one_folder_are_refused(options):
    with pytest.raises(ValueError, match="several runs would have the folder"):
        wanted(*options)


@pytest.mark.parametrize("methods", [["er"], ["all"]])
def test_variants_are_of_agcn_alone(methods):
    with pytest.raises(ValueError, match=r"these are variants of AGCN, and not of .*er"):
        wanted("--method", *methods, variants=VARIANTS)


def test_a_class_name_without_a_word_vector_ends_in_advice_not_in_a_traceback(tmp_path, capsys):
    (tmp_path / "words.txt").write_text("person 0.1 0.2\n")
    options = ["--smoke", "--word-vectors", str(tmp_path / "words.txt"), "--out", str(tmp_path)]
    assert main("coco", None, options) == 1
    assert re.search(r"Stopped: No vector in .*--set missing_words=random", capsys.readouterr().err)
    assert main("coco", None, [*options, "--set", "missing_words=random", "orthogonal_words=false"]) == 0


@pytest.mark.parametrize(("given", "message"), [("pool", "NAME=VALUE"), ("polo=avg", "polo")])
def test_a_setting_that_is_none_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        settings_of(make_parser("coco", None).parse_args(["--set", given]))
