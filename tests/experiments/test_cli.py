import csv
import hashlib
import http.server
import json
import re
import shlex
import shutil
import tarfile
import threading
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from avalanche_agcn.__main__ import report
from avalanche_agcn.benchmarks.download import COCO_2014, VOC_2007, download_archives
from avalanche_agcn.benchmarks.voc import VOC_CLASSES
from avalanche_agcn.experiments import build
from avalanche_agcn.experiments.cli import (
    DATA_NAMES,
    DOWNLOADS,
    FLAGS,
    OPTIONS_OF,
    Log,
    main,
    make_parser,
    settings_of,
)
from avalanche_agcn.experiments.methods import ABLATIONS, CHOICES, METHODS
from avalanche_agcn.experiments.results import read_results
from avalanche_agcn.experiments.settings import LAYERS, TYPES, make_settings

ROOT = Path(__file__).parents[2]


def wanted(options="", benchmark="coco", variants=None):
    """Settings of the runs that a command line asks for."""
    return settings_of(make_parser(benchmark, None).parse_args(shlex.split(options)), variants)


def test_help_has_every_setting_with_its_default():
    text = make_parser("coco", None).format_help()
    own = set().union(*OPTIONS_OF.values()) - OPTIONS_OF["coco"]
    for name in set(TYPES) - {"benchmark", "method_settings", "earlier_classes"} - own:
        assert f"--{FLAGS.get(name, name.replace('_', '-'))}" in text
    options = re.findall(r"^  (--[\w-]+)(.*?)(?=^  --|^\S|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    assert [flag for flag, help in options if "(default:" not in " ".join(help.split())] == []
    assert re.search(r"--image-size N .*\(default:\s+448,\s+drawn\s+scenes:\s+64,\s+small:\s+224\)", text)
    photos = make_parser("photos", None).format_help()
    flags = [FLAGS.get(name, name.replace("_", "-")) for name in OPTIONS_OF["photos"]]
    assert all(f"--{flag} " in photos for flag in ("images", *flags))
    assert re.search(r"--backbone TEXT .*\(default:\s+efficientnet_lite0\)", photos, flags=re.DOTALL)


def test_with_no_options_five_methods_are_compared_over_a_frozen_network():
    runs = wanted("--seed 0 1")
    labels = ["finetuning", "er", "agcn", "agcn-statistics", "streaming_ridge"]
    assert [s.name for s in runs] == [f"{label}-seed{seed}" for label in labels for seed in (0, 1)]
    used = {(s.benchmark, s.freeze_backbone, s.pretrained, s.n_classes) for s in runs}
    assert used == {("scenes", True, True, 20)}
    assert runs[6].method_settings["preset"] == "statistics"


def test_small_defaults_are_those_that_the_study_chose_for_each_method():
    small = "--data x --defaults small "
    runs = {s.label or s.method: s for s in wanted(f"{small} --method {' '.join(CHOICES)}")}
    assert set(METHODS) <= set(runs)
    used = {(s.backbone, s.freeze_backbone, s.pool, s.lr) for s in runs.values()}
    assert used == {("efficientnet_lite0", True, "avg", 1e-5)}
    choices = json.loads((ROOT / "runs" / "studies" / "coco18" / "frozen" / "chosen.json").read_text())
    for label in ("finetuning", "ewc", "lwf", "agem", "er", "prs", "ocdm", "scr", "er + negatives"):
        chosen = {**choices[label]["settings"]}
        assert runs[label].lr_head == chosen.pop("lr")
        assert chosen.items() <= runs[label].method_settings.items()
    assert runs["agcn"].lr_gcn == choices["agcn orthogonal words"]["settings"]["lr_gcn"]
    statistics = choices["agcn statistics"]["settings"]
    assert runs["agcn statistics"].method_settings["lambda_gph"] == statistics["lambda_gph"]
    (given,) = wanted(f"{small} --method er --lr-head 0.5 --pool max")
    assert (given.lr_head, given.pool) == (0.5, "max")
    (statistics,) = wanted(f"{small} --preset statistics")
    assert statistics.method_settings == runs["agcn statistics"].method_settings
    (negatives,) = wanted(f"{small} --method finetuning --negatives statistics")
    assert negatives.lr_head == runs["finetuning + statistics"].lr_head == 3e-3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--method agcn", {"benchmark": "scenes", "n_classes": 40, "preset": "paper"}),
        ("--method agcn", {"freeze_backbone": False}),
        ("--data x", {"benchmark": "coco", "backbone": "resnet101", "lambda_gph": 1e5, "dataset_root": "x"}),
        ("--method agcn_statistics", {"name": "agcn-statistics-seed0", "preset": "statistics"}),
        ("--method er_negatives", {"method": "er", "negatives": ("memory",)}),
        ("--method er --memory 9 --negatives memory", {"mem_size": 9, "negatives": ("memory",)}),
        ("--batch-size 4 --epochs 2 --workers 3", {"train_mb_size": 4, "train_epochs": 2, "num_workers": 3}),
        ("--no-pretrained", {"pretrained": False}),
        # A protocol determines the number of experiences.
        ("--smoke --protocol B0-C1", {"protocol": "B0-C1", "n_classes": 4, "n_experiences": None}),
        ("--set protocol=B0-C10 n_experiences=4 --smoke", {"protocol": "B0-C10", "n_experiences": 4}),
        ("--smoke --protocol paper", {"n_experiences": 2}),
        # So do the sizes of unequal experiences.
        ("--classes-per-experience 5 3 2", {"n_classes": 10, "n_experiences": None}),
        ("--smoke --set 'classes_per_experience=[3, 1]'", {"n_classes": 4, "n_experiences": None}),
        ("--classes-per-experience 5 3 --n-classes 9", {"n_classes": 9, "n_experiences": None}),
        # Values are written as in TOML or Python.
        ("--set channels_last=False cross_blocks=false", {"channels_last": False, "cross_blocks": False}),
        ("--set lr=.001 lr_head=1.", {"lr": 0.001, "lr_head": 1.0}),
        ("--set n_classes=None n_experiences=none", {"n_classes": None, "n_experiences": None}),
        ("--set limit=30 'label=my own'", {"limit": 30, "label": "my own"}),
        ("--set 'label=\"a b\"'", {"label": "a b"}),
        ("--set pool=avg lr=0.5 --set lr=0.25 compile=true", {"pool": "avg", "lr": 0.25, "compile": True}),
    ],
)
def test_options_become_settings(options, expected):
    (settings,) = wanted(options)
    found = {**vars(settings), **settings.method_settings, "name": settings.name}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("name", ["agcn_statistics", "agcn-statistics", "agcn statistics"])
def test_a_variant_may_be_written_as_its_option_folder_or_label(name):
    (settings,) = wanted(f"--method '{name}'")
    assert (settings.name, settings.label) == ("agcn-statistics-seed0", "agcn statistics")
    assert wanted("--method streaming-ridge") == wanted("--method streaming_ridge")


def test_print_config_shows_where_each_setting_comes_from_and_runs_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text("train_mb_size = 3\nlr = 0.5\n")
    options = "--config a.toml --method er_negatives lwf --smoke --defaults small --protocol B0-C2 --lr 0.25"
    assert main("coco", None, shlex.split(f"{options} --set pool=max --seed 3 4 --print-config")) == 0
    tables = capsys.readouterr().out.split("\n\n")
    assert [table.splitlines()[0] for table in tables[:2]] == [
        "er-negatives-seed3, er-negatives-seed4",
        "lwf-seed3, lwf-seed4",
    ]
    rows = {line.split()[0]: line.split()[1:] for line in tables[0].splitlines()[2:]}
    assert rows["pool"] == ["max", "--set"]
    assert rows["lr"] == ["0.25", "option"]
    assert rows["train_mb_size"] == ["3", "--config"]
    assert rows["mem_size"] == ["8", "--smoke"]
    assert rows["negatives"] == ["memory", "--method"]
    assert rows["lr_head"] == ["0.03", "--defaults"]
    assert rows["n_experiences"] == ["none", "experiences"]
    assert rows["eval_mb_size"] == ["64", "benchmark"]
    assert rows["views"] == ["1", "package"]
    assert all(layer in LAYERS for *_, layer in rows.values())
    legend = [line.split()[0] for line in tables[-1].splitlines()]
    assert legend == [layer for layer in LAYERS if layer in {row[-1] for row in rows.values()}]
    assert list(tmp_path.iterdir()) == [tmp_path / "a.toml"]


def test_own_photos_need_images_and_labels():
    (settings,) = wanted("--images DIR --labels labels.csv", "photos")
    assert (settings.benchmark, settings.dataset_root, settings.labels) == ("photos", "DIR", "labels.csv")
    used = (settings.backbone, settings.freeze_backbone, settings.n_experiences)
    assert used == ("efficientnet_lite0", True, None)
    for options, missing in (("--images DIR", "--labels"), ("--labels labels.csv", "--images")):
        with pytest.raises(ValueError, match=f"own photos need {missing}"):
            wanted(options, "photos")


def test_settings_go_to_every_chosen_method_that_has_them():
    names = [settings.name for settings in wanted("--method all --seed 0 2")]
    assert names == [f"{method}-seed{seed}" for method in METHODS for seed in (0, 2)]
    ewc, er, scr, _ = wanted("--method ewc er scr lwf --memory 7 --set ewc_lambda=3 alpha=0.5")
    assert ewc.method_settings["ewc_lambda"] == 3
    assert (er.method_settings["mem_size"], scr.method_settings["mem_size"]) == (7, 7)
    for negatives in ("--negatives memory", "--set negatives=memory"):
        runs = wanted(f"--method all --memory 7 {negatives}")
        assert {s.method for s in runs if s.negatives} == {"er", "prs", "ocdm", "scr", "agcn"}
    runs = wanted("--method all --pseudo-labels --loss asl")
    without = {"multitask", "multitask_ridge", "streaming_ridge", "l3a", "csc"}
    assert {s.method for s in runs if not s.pseudo_labels} == without
    assert {s.loss for s in runs} == {"asl"}


TOML = "lr = 0.5\ntrain_mb_size = 3\nseed = 4\nlambda_gph = 2.0\n[method_settings]\nlambda_cls = 0.1\n"


@pytest.mark.parametrize(("suffix", "text"), [("toml", TOML), ("json", json.dumps(tomllib.loads(TOML)))])
def test_the_command_line_comes_before_the_config(tmp_path, suffix, text):
    (tmp_path / f"run.{suffix}").write_text(text)
    settings = wanted(f"--config {tmp_path / f'run.{suffix}'} --lr 0.25")[0]
    assert (settings.lr, settings.train_mb_size, settings.seed) == (0.25, 3, 4)
    assert (settings.method_settings["lambda_gph"], settings.method_settings["lambda_cls"]) == (2.0, 0.1)


def test_seeds_share_a_page_and_results_repeat_their_run(tmp_path, capsys):
    main("coco", None, ["--smoke", "--method", "lwf", "--seed", "2", "3", "--out", str(tmp_path / "a")])
    printed = capsys.readouterr().out
    assert "was not written" not in printed  # nor while the second seed had learned a part of the classes
    assert "| LwF | 2 |" in printed
    first = tmp_path / "a" / "lwf-seed3" / "results.json"
    main("coco", None, ["--config", str(first), "--out", str(tmp_path / "b")])
    made, repeated = map(read_results, (first, tmp_path / "b" / "lwf-seed3" / "results.json"))
    assert (made.nested, made.settings) == (repeated.nested, repeated.settings)


def test_what_an_earlier_run_has_said_is_not_said_again(capsys):
    log = Log()
    for messages in (("20 photos", "er: 1 of 2", "er: 1 of 2"), ("20 photos", "agem: 1 of 2")):
        log.begin_run()
        for text in messages:
            log(text)
    assert capsys.readouterr().out == "20 photos\ner: 1 of 2\ner: 1 of 2\nagem: 1 of 2\n"


def test_unequal_experiences_are_run(tmp_path):
    sizes = ["--classes-per-experience", "3", "2"]
    main("coco", None, ["--smoke", *sizes, "--method", "finetuning", "--out", str(tmp_path)])
    made = read_results(tmp_path / "finetuning-seed0" / "results.json")
    assert (made.classes_per_experience, made.settings["classes_per_experience"]) == ([3, 2], [3, 2])
    again = tmp_path / "again"
    main("coco", None, ["--config", str(tmp_path / "finetuning-seed0" / "results.json"), "--out", str(again)])
    assert read_results(again / "finetuning-seed0" / "results.json").nested == made.nested


def test_label_and_own_settings_of_a_config_are_not_another_methods(tmp_path):
    settings = make_settings("scenes", method="er", label="mine", n_train=3000, mem_size=7).as_dict()
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"settings": settings, "format": settings["format"]}))

    def runs(options=""):
        found = wanted(f"--config {path} {options}")
        return [(s.name, s.n_train, s.method_settings.get("mem_size")) for s in found]

    assert runs() == [("mine-seed0", 3000, 7)]
    (tmp_path / "several.json").write_text('{"method": ["er", "lwf"]}')
    assert wanted(f"--config {tmp_path / 'several.json'} --method agcn")[0].method == "agcn"
    assert runs("--method er") == [("er-seed0", 3000, 7)]
    assert runs("--method lwf er") == [("lwf-seed0", 3000, None), ("er-seed0", 3000, 2000)]
    assert runs("--smoke") == [("mine-seed0", 64, 8)]  # small whatever the config says
    assert wanted(f"--config {path} --smoke --limit 5")[0].limit == 5


def test_variants_of_the_ablations_are_runs_of_their_own():
    settings = wanted("--seed 0 1", variants=ABLATIONS)
    by_label = {s.label: s for s in settings}
    # AGCN too, but its word vectors are orthogonal
    assert len({s.name for s in settings}) == 2 * len(ABLATIONS)
    assert "agcn-words-plain" in by_label
    assert "agcn-words-orthogonal" not in by_label
    weights = {label: s.method_settings["lambda_gph"] for label, s in by_label.items()}
    assert not by_label["agcn-no-cross"].method_settings["cross_blocks"]
    assert weights["agcn-lambda3-0.1"] == pytest.approx(0.1 * weights["agcn"])
    assert weights["agcn-lambda3-0"] == 0
    with pytest.raises(ValueError, match=r"these are variants of AGCN, and not of .*er"):
        wanted("--method all", variants=ABLATIONS)
    with pytest.raises(ValueError, match="labels of their own: leave --label out"):
        wanted("--label mine", variants=ABLATIONS)


def test_a_missing_folder_of_data_is_named_before_weights_are_loaded(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(build, "make_backbone", lambda settings: pytest.fail("loaded"))
    options = ["--data", str(tmp_path / "absent"), "--backbone", "small", "--out", str(tmp_path)]
    assert main("coco", None, options) == 1
    error = capsys.readouterr().err
    assert re.search(r"^Stopped: There is no folder .* with the data: check --data.", error, re.MULTILINE)
    assert "state" not in error  # nothing has begun


def test_a_class_name_without_a_word_vector_ends_in_advice_not_in_a_traceback(tmp_path, capsys):
    (tmp_path / "words.txt").write_text("person 0.1 0.2\n")
    options = ["--smoke", "--word-vectors", str(tmp_path / "words.txt"), "--out", str(tmp_path)]
    assert main("coco", None, options) == 1
    assert re.search(r"Stopped: No vector in .*--set missing_words=random", capsys.readouterr().err)
    assert main("coco", None, [*options, "--set", "missing_words=random", "orthogonal_words=false"]) == 0


def test_tables_and_plots_come_from_stored_results(tmp_path, capsys):
    main("coco", None, ["--smoke", "--method", "multitask", "agcn", "--out", str(tmp_path / "runs")])
    run_output = capsys.readouterr().out
    assert "not COCO" in run_output
    assert report([str(tmp_path / "runs"), "--out", str(tmp_path / "report")]) == 0
    table = (tmp_path / "report" / "table-SplitScenes.md").read_text()
    assert table in run_output
    assert table in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "report").iterdir()}
    drawn = ("mAP", "classes", "acm-agcn", "pictures-agcn", "pictures-multitask")
    drawings = {f"SplitScenes-{name}.png" for name in drawn}
    tables = {f"table-SplitScenes.{suffix}" for suffix in ("md", "csv", "tex")} | {"classes-SplitScenes.csv"}
    assert names == drawings | tables | {"report.html"}
    pages = [(tmp_path / folder / "report.html").read_text("utf-8") for folder in ("runs", "report")]
    assert pages[0] == pages[1]
    assert all((tmp_path / "report" / name).read_bytes().startswith(b"\x89PNG") for name in drawings)


def test_a_later_command_reports_all_runs_of_the_folder(tmp_path, capsys):
    options = ["--smoke", "--out", str(tmp_path)]
    assert main("coco", None, [*options, "--method", "finetuning"]) == 0
    assert main("coco", None, [*options, "--method", "lwf"]) == 0
    page = (tmp_path / "report.html").read_text("utf-8")
    table = (tmp_path / "table-SplitScenes.md").read_text()
    assert "Fine-Tuning" in page
    assert all(f"| {name} |" in table for name in ("Fine-Tuning", "LwF"))
    assert main("coco", None, [*options, "--method", "lwf", "--seed", "1", "--lr", "0.01"]) == 0
    assert f"Other runs in {tmp_path} are left out of the report: " in capsys.readouterr().out
    assert "Fine-Tuning" not in (tmp_path / "table-SplitScenes.md").read_text()  # nothing is compared wrongly


def test_flags_log_metrics_classes_and_plots_everywhere(tmp_path, monkeypatch):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for name, value in {"MODE": "offline", "SILENT": "true", "CONSOLE": "off"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    for folder in ("DATA", "CACHE"):
        monkeypatch.setenv(f"WANDB_{folder}_DIR", str(tmp_path / folder))
    flags = ["--tensorboard", "--wandb", "--csv-log"]
    assert main("coco", None, ["--smoke", "--out", str(tmp_path / "out"), *flags]) == 0
    out = tmp_path / "out"
    score = read_results(out / "agcn-seed0" / "results.json").per_class_ap["person"] / 100

    events = event_accumulator.EventAccumulator(str(out / "tensorboard" / "agcn-seed0")).Reload()
    tags, test = events.Tags(), "eval_phase/test_stream"
    assert f"mAP_Last/{test}" in tags["scalars"]
    assert events.Scalars(f"AP_Nested/{test}/person")[-1].value == pytest.approx(score)
    assert f"LearningCurve/{test}" in tags["images"]
    assert "ACM/train_phase/train_stream" in tags["images"]

    with (out / "agcn-seed0" / "logs" / "eval_results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["AP_Nested/person"]) == pytest.approx(score)

    images = {path.parent.parent.name for path in out.glob("wandb/offline-run-*/files/media/images/**/*.png")}
    assert {"LearningCurve", "ACM"} <= images
    assert len(list(out.glob("wandb/offline-run-*/*.wandb"))) == 1


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def served_voc(tmp_path, monkeypatch):
    """Serves two archives in place of VOC's own, with an image of every class in each."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    site = tmp_path / "site"
    handler = partial(QuietHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        archives = []
        for real, subset in zip(VOC_2007, ("trainval", "test")):
            release = tmp_path / subset / "VOCdevkit" / "VOC2007"
            for folder in ("Annotations", "ImageSets/Main", "JPEGImages"):
                (release / folder).mkdir(parents=True)
            images = [f"{subset}{k}" for k in range(len(VOC_CLASSES))]
            (release / "ImageSets" / "Main" / f"{subset}.txt").write_text("\n".join(images))
            for image, name in zip(images, VOC_CLASSES):
                Image.new("RGB", (20, 10)).save(release / "JPEGImages" / f"{image}.jpg")
                box = f"<object><name>{name}</name></object>"
                (release / "Annotations" / f"{image}.xml").write_text(f"<annotation>{box}</annotation>")
            site.mkdir(exist_ok=True)
            packed = site / real.name
            with tarfile.open(packed, "w") as file:
                file.add(release.parent, "VOCdevkit")
            archives.append(
                replace(
                    real,
                    url=f"http://127.0.0.1:{server.server_port}/{real.name}",
                    md5=hashlib.md5(packed.read_bytes()).hexdigest(),
                    n_bytes=packed.stat().st_size,
                    n_files=len(images),
                )
            )
        monkeypatch.setattr("avalanche_agcn.benchmarks.download.VOC_2007", archives)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield site
        server.shutdown()


def test_download_fetches_data_before_the_first_run(tmp_path, served_voc, capsys):
    options = f"--data {tmp_path}/voc --download --smoke --method streaming_ridge --out {tmp_path}/runs"
    options += " --backbone small --protocol B0-C4 --n-classes 20"
    assert main("voc", None, shlex.split(options)) == 0
    assert "VOCtest_06-Nov-2007.tar: 100%" in capsys.readouterr().out
    assert len(list((tmp_path / "voc" / "VOCdevkit" / "VOC2007" / "JPEGImages").iterdir())) == 40
    shutil.rmtree(served_voc)
    assert main("voc", None, shlex.split(f"{options} --overwrite")) == 0  # everything is there


def test_download_that_fails_ends_in_a_sentence(tmp_path, served_voc, capsys):
    shutil.rmtree(served_voc)
    assert main("voc", None, ["--data", str(tmp_path / "voc"), "--download"]) == 1
    assert re.search(r"^Stopped: http://.*\(404 File not found\): download VOC", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--download", "--download needs a folder to download to: give it by --data."),
        (
            "--download --data x --set benchmark=wide",
            "--download knows coco and voc, not wide: leave it out.",
        ),
    ],
)
def test_download_needs_a_folder_and_data_that_it_knows(options, message, capsys):
    assert main("coco", None, shlex.split(options)) == 2
    assert message in capsys.readouterr().err


def test_download_belongs_to_the_data_that_can_be_downloaded(tmp_path):
    with_option = {name for name in DATA_NAMES if "--download" in make_parser(name, None).format_help()}
    assert with_option == {"coco", "voc"}
    for name, archives in {"coco": COCO_2014, "voc": VOC_2007}.items():
        total = sum(archive.n_bytes for archive in archives) / 1e9
        assert f"{total:.1f} GB, which need" in DOWNLOADS[name]
        with pytest.raises(OSError, match="are needed") as error:
            download_archives(archives, tmp_path, free_bytes=0)
        needed = re.search(r"but (\S+ GB) are needed", str(error.value))[1]
        assert f"which need {needed} of free space" in DOWNLOADS[name]
