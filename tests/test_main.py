"""The command line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from avalanche_agcn.__main__ import COMMANDS, main
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.settings import make_settings

ROOT = Path(__file__).parents[1]


def python(*arguments):
    how = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True}
    return subprocess.run([sys.executable, *arguments], **how)


@pytest.mark.parametrize("options", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_needs_neither_torch_nor_avalanche(options):
    code = (
        "import sys\nfrom avalanche_agcn.__main__ import main\n"
        f"assert main({options}) == 0\n"
        "sys.exit([name for name in ('torch', 'avalanche', 'matplotlib') if name in sys.modules] or 0)"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: avalanche-agcn")


def test_commands_and_methods_are_listed_and_unknown_ones_named(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in COMMANDS)
    assert main(["rum"]) == 2
    assert "invalid choice: 'rum'" in capsys.readouterr().err
    assert main(["methods"]) == 0
    blocks = re.split(r"^(?=\w)", capsys.readouterr().out, flags=re.MULTILINE)
    shown = {block.split()[0]: " ".join(block.split()) for block in blocks if block.split()}
    for key, method in METHODS.items():
        assert f"{method.name}: {method.description}" in shown[key]
        for name in method.arguments:
            assert f"{name}=" in shown[key] or name == "newer_as_negative"
    assert "er_negatives ER + negatives: er with negatives=memory" in shown["er_negatives"]
    assert {"agcn_statistics", "finetuning_statistics"} <= shown.keys()
    assert "ewc_lambda=1000.0" in shown["ewc"]
    assert "cross_blocks=true" in shown["agcn"]


def test_run_knows_each_data_set_and_shows_the_defaults_in_force(capsys):
    for name, size in (("wide", "21"), ("voc", "none"), ("coco", "40")):
        assert main(["run", name, "--help"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert re.search(rf"--n-classes N .{{0,80}}\(default: {size}", text)
    papers, scenes = (make_settings(name).method_settings for name in ("coco", "scenes"))
    memory = make_settings("coco", method="er").method_settings["mem_size"]
    assert f"images in memory (default: {memory}; AGCN: {papers['mem_size']})" in text
    assert f"(default: {papers['lambda_gph']}, drawn scenes: {scenes['lambda_gph']})" in text
    assert f"statistics (default: {papers['preset']})" in text


def test_misspelled_data_are_named_with_a_suggestion(capsys):
    assert main(["run", "photo", "--images", "x"]) == 2
    message = "unknown data 'photo' (did you mean photos?); known are coco, wide, voc, photos."
    assert message in capsys.readouterr().err


def test_options_of_own_photos_choose_them(tmp_path, capsys):
    assert (
        main(["run", "--images", str(tmp_path / "absent"), "--labels", "x.csv", "--out", str(tmp_path)]) == 1
    )
    assert (
        f"There is no folder {tmp_path / 'absent'} with the data: check --images." in capsys.readouterr().err
    )


def test_avalanche_is_imported_without_the_advice_to_install_qp_solvers():
    done = python("-W", "default", "-c", "from avalanche_agcn import AGCN; print(AGCN.__name__)")
    assert done.stdout == "AGCN\n"
    assert "QP solver" not in done.stderr
