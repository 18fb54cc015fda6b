"""The README and the guides: their code runs, and the files that they link exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = {path.name: path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"))}
CODE = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{name}-{number}")
    for name, path in sorted(PAGES.items())
    for number, block in enumerate(CODE.findall(path.read_text(encoding="utf-8")))
    if "import " in block  # the others continue the block before
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_code_block_runs_as_written(block, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "block", "exec"), {"__name__": "page"})
    assert "Traceback" not in capsys.readouterr().err


def test_the_first_code_is_on_the_first_screen():
    text = PAGES["README.md"].read_text(encoding="utf-8")
    assert text[: text.index("```")].count("\n") < 25


@pytest.mark.parametrize("name", PAGES)
def test_every_linked_file_exists(name):
    links = re.findall(r"\]\((?!http|#)([^)]+)\)", PAGES[name].read_text(encoding="utf-8"))
    assert [link for link in links if not (PAGES[name].parent / link).exists()] == []
