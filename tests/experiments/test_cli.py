import json
import re

import pytest

from avalanche_agcn.experiments.ablations import VARIANTS
from avalanche_agcn.experiments.cli import main, make_parser, settings_of
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.report import main as report


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


@pytest.mark.parametrize(("given", "message"), [("pool", "NAME=VALUE"), ("polo=avg", "polo")])
def test_a_setting_that_is_none_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        settings_of(make_parser("coco", None).parse_args(["--set", given]))
