"""Photos of your own, with labels in a CSV file."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from avalanche_agcn.benchmarks.image_files import ImageFiles, Truncated, check_readable, is_outside
from avalanche_agcn.benchmarks.published import LabelTable

FILE_COLUMNS = {"file", "files", "filename", "file_name", "image", "images", "image_name", "path", "photo"}
LABEL_COLUMNS = re.compile(r"(label|tag|class|classe|category|categorie)s?[ _]?\d*")
"""A header such as ``labels`` or ``label2`` is of a column with names of classes, not of a class."""
IMAGE_FILE = re.compile(r".+\.(jpe?g|png|gif|bmp|tiff?|webp)", re.IGNORECASE)
VALUES = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
MAX_NAME = 200  # characters of a label; more are a cell that was not split
EACH_CELL = ""
SEPARATOR_NAMES = {EACH_CELL: "each in a cell", " ": "separated by spaces"}


class Row(NamedTuple):
    """A row of a CSV file; the first has number 1, as in a spreadsheet."""

    number: int
    cells: list[str]


class CSVLabels(NamedTuple):
    """Labels read from a CSV file."""

    table: LabelTable
    rows: list[int]
    """Row of each image."""
    layout: str
    """What the columns were taken for, in words."""


def multilabel_csv(
    path: str | os.PathLike,
    images: str | os.PathLike,
    *,
    class_names: Sequence[str] | None = None,
    separator: str | None = None,
    truncated: Truncated = "warn",
    check_images: bool = True,
    log: Callable[[str], None] = print,
) -> ImageFiles:
    r"""Photos with labels from a CSV file, for `multilabel_benchmark`.

    The file has one row per photo, in one of two layouts, which its header tells:

    - ``file,labels`` and rows such as ``beach.jpg,person;dog``: names separated by semicolons, pipes, commas
      or spaces;
    - ``file,person,dog,car`` and rows such as ``beach.jpg,1,1,0``: a column of 0 and 1 for each class.

    Args:
        path: the CSV file, in UTF-8; columns separated by commas, semicolons or tabs.
        images: folder that the file names are relative to.
        class_names: classes in the order of the columns of ``targets``, such as those of the train file for
            the test file. By default names in alphabetical order, or the columns of the file.
        separator: what separates names in a cell; found out from the file if None.
        truncated: what to do with a truncated photo; see `ImageFiles`.
        check_images: whether to open all photos now, so that broken ones are found before training begins.
        log: receives one line that says what the file was taken for.

    Returns:
        The photos, with ``targets`` and ``class_names``.

    Raises:
        FileNotFoundError: if the file or the folder is missing.
        OSError: if photos cannot be opened; names rows and files.
        ValueError: if a row does not fit; names file, row and value.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (8, 8)).save(folder / "beach.jpg")
        >>> _ = (folder / "labels.csv").write_text("file,labels\nbeach.jpg,person;dog\n")
        >>> photos = multilabel_csv(folder / "labels.csv", images=folder, log=lambda text: None)
        >>> photos.class_names, photos.targets.tolist()
        (['dog', 'person'], [[1, 1]])
    """
    (files, targets, names, _), rows, layout = read_csv(path, class_names=class_names, separator=separator)
    n_unlabelled = int((~targets.any(1)).sum())
    without = f", {n_unlabelled} without any label" if n_unlabelled else ""
    log(f"{path}: {layout}; {len(files)} images{without}, {len(names)} classes.")
    photos = ImageFiles(images, files, targets, class_names=names, truncated=truncated)
    if check_images:
        check_readable(photos, lambda k: f"{path}, row {rows[k]}")
    return photos


def read_csv(
    path: str | os.PathLike, *, class_names: Sequence[str] | None = None, separator: str | None = None
) -> CSVLabels:
    """Labels of a CSV file, without its photos; see `multilabel_csv`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a row does not fit; names file, row and value.
    """
    header, *rows = _read_rows(Path(path))
    columns = [cell.strip() for cell in header.cells]
    if any(IMAGE_FILE.fullmatch(name) for name in columns):  # there is no header
        if any(name in VALUES for name in columns):
            raise ValueError(
                f"{path}, row {header.number}: there is no header; name the columns: file,cat,dog."
            )
        rows, columns = [header, *rows], ["file", "labels"]
    place = next((k for k, name in enumerate(columns) if name.lower() in FILE_COLUMNS), 0)
    content = _Content(path, Row(header.number, columns), rows, place)
    content.check_shape()
    files = content.files()
    known = None if class_names is None else list(class_names)
    if content.has_names():
        table, layout = content.from_names(known, separator)
    else:
        table, layout = content.from_columns(known)
    return CSVLabels(table._replace(files=files), [row.number for row in rows], layout)


@dataclass
class _Content:
    """Rows of a file, of which cell ``place`` is the name of an image."""

    path: str | os.PathLike
    header: Row
    rows: list[Row]
    place: int

    def error(self, row: Row, text: str) -> ValueError:
        return ValueError(f"{self.path}, row {row.number}: {text}.")

    def labels_of(self, row: Row) -> list[str]:
        """Cells of a row without the name of the image."""
        return [cell.strip() for k, cell in enumerate(row.cells) if k != self.place]

    def check_shape(self) -> None:
        if len(self.header.cells) < 2:
            name = _short(self.header.cells[0])
            raise self.error(self.header, f"{name} is the only column; separate file and labels by commas")
        if not self.rows:
            raise self.error(self.header, "there is a header but no image; add a row for each image")

    def files(self) -> list[str]:
        found: dict[str, int] = {}
        for row in self.rows:
            file = row.cells[self.place].strip() if self.place < len(row.cells) else ""
            if not file or not file.isprintable():
                raise self.error(row, f"expected the name of an image file, got {_short(file)}")
            if is_outside(file):
                reason = "is not below the folder of images; write names relative to it"
                raise self.error(row, f"{_short(file)} {reason}")
            file = file.replace("\\", "/")
            if file in found:
                reason = f"is already in row {found[file]}; write all its labels in one row"
                raise self.error(row, f"{_short(file)} {reason}")
            found[file] = row.number
        return list(found)

    def has_names(self) -> bool:
        """Whether rows have names of classes, not a 0 or 1 for each."""
        others = self.labels_of(self.header)
        if all(LABEL_COLUMNS.fullmatch(name.lower()) for name in others):
            return True
        values = {value.lower() for row in self.rows for value in self.labels_of(row)}
        return len(others) == 1 and not values - {""} <= VALUES.keys()

    def from_names(self, classes: list[str] | None, separator: str | None) -> tuple[LabelTable, str]:
        if separator is None:
            separator = _find_separator([self.labels_of(row) for row in self.rows])
        names = [self._names(row, separator) for row in self.rows]
        classes = sorted({name for own in names for name in own}) if classes is None else classes
        column_of = {name: column for column, name in enumerate(classes)}
        labels = torch.zeros(len(self.rows), len(classes), dtype=torch.int8)
        for k, (row, own) in enumerate(zip(self.rows, names, strict=True)):
            for name in own:
                if name not in column_of:
                    raise self.error(row, f"unknown label {_short(name)}; known are {_list(classes)}")
                labels[k, column_of[name]] = 1
        how = SEPARATOR_NAMES.get(separator, f"separated by {separator!r}")
        return LabelTable([], labels, classes), f"names of classes, {how}"

    def _names(self, row: Row, separator: str) -> list[str]:
        cells = self.labels_of(row)
        if separator == EACH_CELL:
            names = [cell for cell in cells if cell]
        elif separator.isspace():
            names = " ".join(cells).split()
        else:
            joined = separator.join(cells).strip(separator + " \t")
            names = [name.strip() for name in joined.split(separator)]
        if not any(names):
            raise self.error(row, "there is no label; add one, or remove the row")
        for name in names:
            if not _is_name(name):
                raise self.error(row, f"{_short(name)} cannot be a label; write names such as person;dog")
        return names

    def from_columns(self, classes: list[str] | None) -> tuple[LabelTable, str]:
        names = self.labels_of(self.header)
        for name in names:
            if names.count(name) > 1 or not _is_name(name):
                reason = "is empty, twice there or not a name; rename it"
                raise self.error(self.header, f"the column {_short(name)} {reason}")
        classes = names if classes is None else classes
        differing = sorted(set(names) ^ set(classes))
        if differing:
            reason = f"only one of train and test labels has {_list(differing)}"
            raise self.error(self.header, f"{reason}; give both the same columns")
        labels = torch.stack([self._values(row) for row in self.rows])
        order = [names.index(name) for name in classes]
        return LabelTable([], labels[:, order], classes), "a column of 0 and 1 for each class"

    def _values(self, row: Row) -> Tensor:
        if len(row.cells) != len(self.header.cells):
            sizes = f"{len(row.cells)} cells, but the header has {len(self.header.cells)}"
            raise self.error(row, f"there are {sizes}; give each class a 0 or 1")
        cells = self.labels_of(row)
        for name, cell in zip(self.labels_of(self.header), cells, strict=True):
            if cell.lower() not in VALUES:
                raise self.error(row, f"expected 0 or 1 for {_short(name)}, got {_short(cell)}")
        return torch.tensor([VALUES[cell.lower()] for cell in cells], dtype=torch.int8)


def _find_separator(cells: Sequence[Sequence[str]]) -> str:
    """What separates names: a character found in cells; nothing where several cells have a name each."""
    found = [sign for sign in ";|," if any(sign in cell for own in cells for cell in own)]
    several = any(len(own) > 1 for own in cells)
    return found[0] if found else EACH_CELL if several else " "


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME and text.isprintable()


def _read_rows(path: Path) -> list[Row]:
    """Rows that are not blank."""
    text = _read_text(path)
    first_line = text.lstrip().partition("\n")[0]
    delimiter = next((sign for sign in "\t,;" if sign in first_line), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[Row] = []
    number = 0
    try:
        for number, cells in enumerate(reader, 1):
            if any(cell.strip() for cell in cells):
                rows.append(Row(number, cells))
    except csv.Error as error:
        reason = f"a cell is too long ({csv.field_size_limit()} characters are the limit)"
        reason = reason if "field limit" in str(error) else str(error)
        raise ValueError(f"{path}, row {number + 1}: {reason}; is a quotation mark missing?") from None
    if not rows:
        raise ValueError(f"{path}, row 1: the file is empty; write a header and a row for each image.")
    return rows


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path} with labels.")
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
        begin = content.find(b"\0")
        if begin < 0:
            return text
    except UnicodeDecodeError as error:
        begin = error.start
    row = content[:begin].count(b"\n") + 1
    raise ValueError(f"{path}, row {row}: this is not text in UTF-8; save the file as CSV in UTF-8.")


def _short(value: str) -> str:
    return repr(value if len(value) <= 60 else value[:57] + "…")


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
