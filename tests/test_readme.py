import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_code_block_runs_as_it_stands(number, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"README.md, block {number}", "exec"), {"__name__": "readme"})
    assert "Traceback" not in capsys.readouterr().err


def test_the_first_code_stands_on_the_first_screen():
    assert README[: README.index("```")].count("\n") < 25


def test_every_file_the_readme_links_is_there():
    for target in re.findall(r"\]\((?!http|#)([^)]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists()
