"""The tutorial, the paper beside the code, and the website."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import avalanche_agcn

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
    assert shown == 11  # nine equations, and two lines of the graph
    equations = re.findall(r"^\*\*Eq\. (\d)\.\*\*", "\n".join(sections), re.MULTILINE)
    assert equations == [str(number) for number in range(1, 10)]


def test_the_lines_below_an_equation_compute_that_equation():
    page = (ROOT / "docs" / "agcn.md").read_text(encoding="utf-8")
    named_in_comments = {}
    for part in re.split(r"^\*\*Eq\. (?=\d\.\*\*)", page, flags=re.MULTILINE)[1:]:
        line = re.search(r"```python\n(.*)\n```", part)[1]
        named_in_comments[part[0]] = re.findall(r"#.*?Eq\. (\d)", line)
    final_loss = {"9": []}  # its line has no room for a comment, but names the three losses
    assert named_in_comments == {number: [number] for number in "12345678"} | final_loss


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


def reference():
    """Modules of the API reference; each with the members that are listed, or None if it has all of them."""
    modules = {}
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        for block in page.read_text(encoding="utf-8").split("\n::: ")[1:]:
            members = re.search(r"members: \[(.*)\]", block)
            modules[block.split()[0]] = members and members[1].split(", ")
    return modules


def defined_in(module):
    own = [name for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__]
    return [name for name in own if not name.startswith("_")]


def test_every_public_name_is_in_the_reference_and_documented():
    modules = reference()
    rendered = []
    for module, members in modules.items():
        imported = import_module(module)
        names = members or getattr(imported, "__all__", vars(imported))
        rendered += [getattr(imported, name) for name in names]
    for package in (*avalanche_agcn._PACKAGES, "evaluation.functional"):
        imported = import_module(f"avalanche_agcn.{package}")
        names = getattr(imported, "__all__", None) or [
            name
            for name, one in vars(imported).items()
            if getattr(one, "__module__", "") == imported.__name__
        ]
        objects = {name: getattr(imported, name) for name in names if not name.startswith("_")}
        missing = [name for name, one in objects.items() if not any(one is other for other in rendered)]
        assert missing == [], package
        assert [name for name, one in objects.items() if not one.__doc__] == [], package  # not shown without


PAGES = {
    "index.html": "A whole training loop",  # the README
    "RESULTS.html": "Results",
    "RESULTS-tables.html": "All tables",
    "REPRODUCTION.html": "reproduced",
    "speed.html": "Speed",
}
"""Pages whose documents are outside docs/, and words of each."""


@pytest.mark.slow
def test_the_website_is_built_from_a_clean_copy(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    pytest.importorskip("efficientnet_lite_pytorch", reason="the tutorial's network is not installed")
    copy, site = tmp_path / "copy", tmp_path / "site"
    copy.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(copy)], input=archive.stdout, check=True)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    environment = ENVIRONMENT | {"PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page, words in PAGES.items():
        assert words in (site / page).read_text(encoding="utf-8")
    for package in avalanche_agcn._PACKAGES:
        layer = package.partition(".")[0]
        page = (site / "reference" / f"{layer}.html").read_text(encoding="utf-8")
        shown = set(re.findall(r'<h\d id="avalanche_agcn\.([\w.]+)"', page))
        names = import_module(f"avalanche_agcn.{package}").__all__
        assert [name for name in names if not any(f".{one}".endswith(f".{name}") for one in shown)] == []
    tutorial = (site / "tutorial.html").read_text(encoding="utf-8")
    pictures = re.findall(r'<img [^>]*src="data:image/png;base64', tutorial)  # not those of style sheets
    assert len(pictures) == 3  # a scene, the learning curves, the matrix
    assert "StreamingRidge" in tutorial
    home = (site / "index.html").read_text(encoding="utf-8")
    links = re.findall(r'(?:href|src)="([^"#?:]+)["#?]', home)  # without those to other sites
    assert len(links) > 20
    assert [link for link in links if not (site / link).exists()] == []
