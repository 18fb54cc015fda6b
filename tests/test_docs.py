"""The tutorial, the paper beside the code, and the website."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
AGCN = ROOT / "avalanche_agcn" / "agcn"
TUTORIAL = ROOT / "docs" / "tutorial.ipynb"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
SIZE = "N_PHOTOS = 600"


def test_the_paper_stands_beside_the_lines_that_are_in_the_code():
    sections = (ROOT / "docs" / "agcn.md").read_text(encoding="utf-8").split("\n## ")[1:]
    shown = 0
    for section in sections:
        files = re.findall(r"`(\w+\.py)`", section.splitlines()[0])
        code = "\n".join((AGCN / file).read_text(encoding="utf-8") for file in files)
        for line in re.findall(r"```python\n(.*)\n```", section):
            assert re.search(rf"^ +{re.escape(line)}$", code, re.MULTILINE), line
            shown += 1
    assert shown == 10  # nine equations and the graph
    equations = re.findall(r"^\*\*Eq\. (\d)\.\*\*", "\n".join(sections), re.MULTILINE)
    assert equations == [str(number) for number in range(1, 10)]


@pytest.fixture
def notebook():
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    return nbformat.read(TUTORIAL, as_version=4)


def test_the_tutorial_is_short_and_stored_without_outputs(notebook):
    assert len(notebook.cells) <= 16
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert SIZE in code[0].source
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


@pytest.mark.slow
def test_the_tutorial_runs_from_naive_to_a_prediction(notebook, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("efficientnet_lite_pytorch", reason="the small network is not installed")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    cells[0].source = cells[0].source.replace(SIZE, "N_PHOTOS = 120")
    nbclient.NotebookClient(notebook, timeout=1800, kernel_name="python3").execute()  # raises if a cell fails
    printed = ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]
    assert "Top1_Acc_Stream" in printed[1]
    assert "nan" in printed[2]  # unlabelled
    assert printed[3].count("after experience") == printed[4].count("after experience") == 4
    for cell in cells[4:6]:  # the learning curve and the correlation matrix
        assert "image/png" in cell.outputs[-1]["data"]
    assert "StreamingRidge" in printed[6]
    assert "report.html" in printed[6]
    assert "0003.jpg" in printed[7]


@pytest.mark.slow
def test_the_website_has_every_public_name(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for layer in ("benchmarks", "models", "evaluation", "training"):
        page = (tmp_path / "reference" / f"{layer}.html").read_text(encoding="utf-8")
        module = f"avalanche_agcn.{layer}"
        missing = [name for name in import_module(module).__all__ if f'id="{module}.{name}"' not in page]
        assert missing == []
