"""Predictions as text: a table, JSON, JSON lines or CSV, printed or in a file that can be continued."""

from __future__ import annotations

import codecs
import contextlib
import csv
import hashlib
import io
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, TextIO

from filelock import FileLock, Timeout

from avalanche_agcn.checks import naming_file, shown
from avalanche_agcn.models.saved import Prediction, SavedModel

Form = Literal["table", "json", "jsonl", "csv"]
FORM_OF_SUFFIX: dict[str, Form] = {".csv": "csv", ".jsonl": "jsonl"}
Found = tuple[str, Prediction]
"""A photo and what was found in it."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
LINE_BREAKS = {ord("\n"): r"\n", ord("\r"): r"\r"}
# Paths with line breaks or undecodable bytes exist only where a backslash is no separator.
PATH_ESCAPES = LINE_BREAKS | ({} if os.sep == "\\" else {ord("\\"): r"\\"})
WRONG_LINE = (ValueError, KeyError, TypeError, AttributeError, StopIteration, OverflowError, RecursionError)
"""Errors of parsing a line that is none of predictions."""
SAME_MODEL = 1e-3  # largest difference of probabilities that other batches or machines can cause


def format_begin(form: Form, class_names: Sequence[str]) -> str:
    """What precedes the first photo: the header of a CSV, the bracket of a JSON list."""
    if form == "csv":
        return _csv_lines([["image", "labels", *map(_cell, class_names)]])
    return "[" if form == "json" else ""


def format_rows(form: Form, found: Sequence[Found], *, is_first: bool = True, in_ascii: bool = False) -> str:
    """Labels of photos in a table; in the other formats also the probabilities of all classes.

    With ``in_ascii``, other characters are escapes of JSON.
    """
    if form == "csv":
        return _csv_lines(
            [_photo_cell(photo), _cell(";".join(own.names)), *_rounded(own.probabilities).values()]
            for photo, own in found
        )
    if form == "table":
        width = max(len(printable(photo)) for photo, _ in found)
        return "".join(f"{printable(photo):{width}}  {_labels(own)}\n" for photo, own in found)
    rows = [
        {"image": photo, "labels": own.names, "probabilities": _rounded(own.probabilities)}
        for photo, own in found
    ]
    if form == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=in_ascii) + "\n" for row in rows)
    items = [textwrap.indent(json.dumps(row, ensure_ascii=in_ascii, indent=1), " ") for row in rows]
    return ("\n" if is_first else ",\n") + ",\n".join(items)


def _rounded(probabilities: Mapping[str, float]) -> dict[str, float]:
    """Seven significant digits, of which float32 has no more."""
    return {name: float(f"{value:.7g}") for name, value in probabilities.items()}


def format_end(form: Form) -> str:
    """What follows the last photo."""
    return "\n]\n" if form == "json" else ""


def _csv_lines(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _cell(text: str) -> str:
    """A cell on one line that spreadsheets do not take for a formula: a quote precedes = + - @."""
    return _without_formula(text).translate(LINE_BREAKS)


def _photo_cell(photo: str) -> str:
    """The cell of a photo's path. Different paths give different cells, so a cell identifies its photo."""
    return _without_formula(photo).translate(PATH_ESCAPES)


def _without_formula(text: str) -> str:
    # Of a text with quotes before the sign, too: '=a would otherwise be the cell of =a.
    return f"'{text}" if text.lstrip("'").startswith(FORMULA) else text


def _labels(found: Prediction) -> str:
    ranked = sorted(found.probabilities, key=found.probabilities.__getitem__, reverse=True)
    names = found.names or ranked[:1]
    text = ", ".join(f"{printable(name)} {found.probabilities[name]:.2f}" for name in names)
    return text if found.names else f"nothing found; most probable: {text}"


def printable(text: str) -> str:
    """A text without control characters, which would change what a terminal shows."""
    return text if text.isprintable() else ascii(text)


def _is_unicode(stream: TextIO) -> bool:
    """Whether a stream can have all characters; it writes others as escapes that JSON does not have."""
    encoding = getattr(stream, "encoding", None)
    return encoding is None or codecs.lookup(encoding).name.startswith("utf")


class Output:
    """Prints predictions on standard output, batch by batch.

    Attributes:
        is_on_screen: whether the predictions themselves show the progress.
    """

    def __init__(self, form: Form) -> None:
        if sys.stdout is None:
            raise OSError("Standard output is closed: write the labels to a file by --out.")
        self.form = form
        self.is_on_screen = sys.stdout.isatty()
        self._in_ascii = not _is_unicode(sys.stdout)
        self._is_first = True

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def begin(self, model: SavedModel, *, threshold: float | None = None, top: int | None = None) -> None:
        """Write what precedes the first photo."""
        self._write(format_begin(self.form, model.class_names))

    def lacks(self, photo: str) -> bool:
        """Whether the photo is to be predicted."""
        return True

    def write(self, found: Sequence[Found]) -> None:
        """Write the predictions of a batch."""
        if found:
            self._write(format_rows(self.form, found, is_first=self._is_first, in_ascii=self._in_ascii))
            self._is_first = False

    def end(self) -> None:
        """Write what follows the last photo."""
        self._write(format_end(self.form))

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


class OutputFile(Output):
    """Writes predictions to a CSV or JSON lines file, each photo once; with ``resume`` to an existing one.

    A photo is a line, and a batch is written at once. If the process is killed, the last line may be
    incomplete: it is removed when the file is continued, and its photo predicted again.

    Args:
        path: its suffix, ``.csv`` or ``.jsonl``, is the format.
        resume: whether to add the photos that an existing file does not have.

    Raises:
        ValueError: if the file has another suffix, other classes, or predictions of another model.
        FileExistsError: if there is such a file and it is not to be resumed.
        OSError: if it is in use or cannot be written.
    """

    def __init__(self, path: str | os.PathLike, *, resume: bool = False) -> None:
        self.path = Path(path)
        if self.path.suffix not in FORM_OF_SUFFIX:
            raise ValueError(f"--out must end in {' or '.join(FORM_OF_SUFFIX)}, not {shown(self.path.name)}.")
        self.form = FORM_OF_SUFFIX[self.path.suffix]
        self.is_on_screen = False
        self._in_ascii = False
        self._is_first = True
        self._resume = resume
        self._known: set[bytes] = set()  # digests, which take less memory than paths
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> OutputFile:
        if self.path.exists() and not self.path.is_file():  # reading a pipe or device may never end
            raise OSError(f"{self.path} is not a regular file: choose another file.")
        if self.path.exists() and not self._resume:
            raise FileExistsError(
                f"{self.path} exists: give --resume to add the photos that it lacks, or choose another file."
            )
        lock_path = self.path.with_name(f".{self.path.name}.lock")
        with self._stack as stack:
            try:
                stack.enter_context(FileLock(lock_path, timeout=0))
            except Timeout:
                raise OSError(
                    f"{self.path} is being written by another process: wait for it, or write to another file."
                ) from None
            stack.callback(lock_path.unlink, missing_ok=True)
            self._file: BinaryIO = stack.enter_context(open(self.path, "ab+"))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        with naming_file(self.path):  # closing writes again what could not be written
            self._stack.close()

    def begin(self, model: SavedModel, *, threshold: float | None = None, top: int | None = None) -> None:
        """Read the photos that the file has, or write its header."""
        first = self._read(model.class_names)
        if self._file.tell() == 0:
            super().begin(model)
        elif first is not None:
            self._check_model(model, first)
            self._check_rule(model.choose(first.probabilities, threshold=threshold, top=top), first)

    def lacks(self, photo: str) -> bool:
        """Whether the photo is not in the file, nor about to be written to it."""
        key = _digest(_as_written(_photo_cell(photo)) if self.form == "csv" else photo)
        if key in self._known:
            return False
        self._known.add(key)
        return True

    def _write(self, text: str) -> None:
        with naming_file(self.path):
            self._file.write(_as_written(text).encode("utf-8"))
            self._file.flush()

    def _read(self, class_names: Sequence[str]) -> Line | None:
        """Note the photos in the file, cut an incomplete last line; return the line of a photo or None."""
        self._file.seek(0)
        first = None
        end = 0
        for number, content in enumerate(self._file, 1):
            if not content.endswith(b"\n"):
                break
            end += len(content)
            line = self._parse(content, number, class_names)
            if line is not None:
                self._known.add(_digest(line.photo))
                is_path = self.form != "csv" or _photo_cell(line.photo) == line.photo  # without escapes
                if first is None and is_path:
                    first = line
        self._file.truncate(end)
        self._file.seek(end)
        return first

    def _parse(self, content: bytes, number: int, class_names: Sequence[str]) -> Line | None:
        """A line of the file; None for the header of a CSV."""
        try:
            text = content.decode("utf-8")
            if self.form == "csv" and number == 1:
                is_same = text == format_begin("csv", class_names)
                line = None
            elif self.form == "csv":
                photo, labels, *cells = next(csv.reader([text]))
                line = Line(photo, labels, [float(cell) for cell in cells])
                is_same = len(cells) == len(class_names)
            else:
                row = json.loads(text)
                probabilities = [float(value) for value in row["probabilities"].values()]
                line = Line(row["image"], row["labels"], probabilities)
                is_same = list(row["probabilities"]) == list(class_names)
                if not isinstance(line.photo, str):
                    raise TypeError("a path is a text")
        except (*WRONG_LINE, csv.Error):
            raise ValueError(
                f"{self.path}, line {number}, is not a line of predictions: write to another file."
            ) from None
        if not is_same:
            raise ValueError(
                f"{self.path}, line {number}, has other classes than the model: write to another file."
            )
        return line

    def _check_model(self, model: SavedModel, first: Line) -> None:
        """Raise a ValueError if the model gives other probabilities than the file has for a photo."""
        try:
            (found,) = model.predict(first.photo)
        except OSError:  # the photo is no longer there
            return
        pairs = zip(found.probabilities.values(), first.probabilities, strict=True)
        if not all(abs(new - old) <= SAME_MODEL for new, old in pairs):
            raise ValueError(
                f"{self.path} has predictions of another model: {first.photo} has other probabilities there. "
                "Write to another file."
            )

    def _check_rule(self, chosen: Prediction, first: Line) -> None:
        """Raise a ValueError if the labels that the file has for a photo were chosen by another rule."""
        labels = _cell(";".join(chosen.names)) if self.form == "csv" else chosen.names
        if labels != first.labels:
            raise ValueError(
                f"{self.path} has labels by another rule: {first.photo} has {shown(first.labels)} there, "
                f"and {shown(labels)} now. Give the same --threshold and --top, or write to another file."
            )


class Line(NamedTuple):
    """What a file has about a photo."""

    photo: str
    labels: str | list[str]
    probabilities: list[float]


def _as_written(text: str) -> str:
    """A text with undecodable bytes of a path as escapes, which JSON reads as these."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _digest(photo: str) -> bytes:
    return hashlib.blake2b(photo.encode("utf-8", "surrogatepass"), digest_size=16).digest()
