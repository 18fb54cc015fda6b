"""Text in the formats of reports: one function for each, for whatever names of classes and labels contain."""

from __future__ import annotations

import re

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "#": r"\#",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "%": r"\%",
    "_": r"\_",
    "&": r"\&",
    "–": "--",
    "±": r"$\pm$",
    "×": r"$\times$",
    "√": r"$\surd$",
    "λ₁": r"$\lambda_1$",
    "λ₂": r"$\lambda_2$",
    "λ₃": r"$\lambda_3$",
}
_LATEX_SYMBOLS = re.compile("|".join(map(re.escape, _LATEX)))
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?( ± \d+(\.\d+)?)?")


def for_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is, also in a table.

    Example:
        >>> for_markdown("a|b [c](d) <e>")
        'a\\|b \\[c\\](d) &lt;e&gt;'
    """
    escaped = re.sub(r"([\\`*|\[\]])", r"\\\1", _on_one_line(text))
    return escaped.replace("<", "&lt;").replace(">", "&gt;")


def for_latex(text: str) -> str:
    r"""Text that LaTeX typesets as it is, with commands for the symbols of our tables.

    Example:
        >>> for_latex(r"5 ± 1 \input{x}")
        '5 $\\pm$ 1 \\textbackslash{}input\\{x\\}'
    """
    return _LATEX_SYMBOLS.sub(lambda match: _LATEX[match[0]], _on_one_line(text))


def for_csv(text: str) -> str:
    """Text that a spreadsheet does not take for a formula.

    Example:
        >>> for_csv("=cmd|x"), for_csv("-9.2 ± 0.1")
        ("'=cmd|x", '-9.2 ± 0.1')
    """
    is_formula = _FORMULA.match(text) and not _NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
