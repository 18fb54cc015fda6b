"""Photos of your own, with labels in a CSV file."""

import csv
import io
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from avalanche_agcn.benchmarks.image_files import ImageFiles, Truncated, check_inside, check_readable
from avalanche_agcn.benchmarks.tables import LabelTable
from avalanche_agcn.checks import listed, read_file, same_spelling, shown

FILE_COLUMNS = {"file", "files", "filename", "file_name", "image", "images", "image_name", "path", "photo"}
LABEL_COLUMNS = re.compile(r"(label|tag|class|classe|category|categorie)s?[ _]?\d*")
"""Headers such as ``labels`` or ``label2``, of a column with names of classes instead of a class."""
IMAGE_FILE = re.compile(r".+\.(jpe?g|png|gif|bmp|tiff?|webp)", re.IGNORECASE)
VALUES = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
MAX_NAME = 200  # characters of a label; a longer one is a cell that was not split
Log = Callable[[str], None]
EACH_CELL = ""
SEPARATOR_NAMES = {EACH_CELL: "each in a cell", " ": "separated by spaces"}


class Row(NamedTuple):
    """A row of a CSV file; the first has number 1, as in a spreadsheet."""

    place: str  # "labels.csv, row 7"
    number: int
    cells: list[str]

    def without(self, column: int) -> "Row":
        """The same row without one of its cells."""
        return self._replace(cells=self.cells[:column] + self.cells[column + 1 :])

    def error(self, text: str) -> ValueError:
        """An error about this row."""
        return ValueError(f"{self.place}: {text}.")


class PhotoLabels(NamedTuple):
    """Labels of photos, and how they were read."""

    table: LabelTable
    layout: str  # the file and the layout that was recognised, in words
    places: list[str]  # where each photo is named: "labels.csv, row 7"


def multilabel_csv(
    path: str | os.PathLike,
    images: str | os.PathLike,
    *,
    class_names: Sequence[str] | None = None,
    separator: str | None = None,
    truncated: Truncated = "warn",
    check_images: bool = True,
    log: Log = print,
) -> ImageFiles:
    """Photos with labels from a CSV file, for `multilabel_benchmark`.

    The file has one row per photo, in one of two layouts, recognised by the header:

    - ``file,labels`` and rows such as ``beach.jpg,person;dog``: names separated by semicolons, pipes or
      commas; they may contain spaces, as in ``hot dog``;
    - ``file,person,dog,car`` and rows such as ``beach.jpg,1,1,0``: a column of 0 and 1 for each class.

    Args:
        path: the CSV file, in UTF-8; columns separated by commas, semicolons or tabs.
        images: folder that the file names are relative to.
        class_names: classes in the order of the columns of ``targets``, such as those of the train file for
            the test file. By default names in alphabetical order, or the columns of the file.
        separator: between the names in a cell, such as ``" "``; by default the first of ``;|,`` that a
            cell has.
        truncated: what to do with a truncated photo; see `ImageFiles`.
        check_images: whether to open all photos now, so that broken ones are found before training.
        log: receives one line about the layout that was recognised.

    Raises:
        OSError: if photos cannot be opened; names rows and files.
        ValueError: if a row does not fit; names file, row and value.
    """
    read = read_csv(path, class_names=class_names, separator=separator)
    return open_photos(images, read, truncated=truncated, check_images=check_images, log=log)


def open_photos(
    images: str | os.PathLike, read: PhotoLabels, *, truncated: Truncated, log: Log, check_images: bool = True
) -> ImageFiles:
    """The photos of labels that were read; logs one line about these. See `multilabel_csv`."""
    files, targets, names, _ = read.table
    n_unlabelled = int((~targets.any(1)).sum())
    without = f", {n_unlabelled} without any label" if n_unlabelled else ""
    log(f"{read.layout}; {len(files)} images{without}, {len(names)} classes.")
    photos = ImageFiles(images, files, targets, class_names=names, truncated=truncated)
    if check_images:
        check_readable(photos, read.places)
    return photos


def read_csv(
    path: str | os.PathLike, *, class_names: Sequence[str] | None = None, separator: str | None = None
) -> PhotoLabels:
    """Labels of a CSV file, without its photos; see `multilabel_csv`."""
    header, *rows = _read_rows(Path(path))
    if any(IMAGE_FILE.fullmatch(name) for name in header.cells):  # there is no header
        if any(name in VALUES for name in header.cells):
            raise header.error("there is no header; name the columns: file,cat,dog")
        rows = [header, *rows]
        header = header._replace(cells=["file", "labels"])
    if len(header.cells) < 2:
        name = shown(header.cells[0])
        raise header.error(f"{name} is the only column; separate file and labels by commas")
    if not rows:
        raise header.error("there is a header but no image; add a row for each image")
    file_column = _find_file_column(header)
    files = _file_names(rows, file_column)
    header = header.without(file_column)
    rows = [row.without(file_column) for row in rows]
    known = None if class_names is None else [same_spelling(name) for name in class_names]
    if _has_names(header, rows):
        labels, names, layout = _from_names(rows, known, separator)
    else:
        labels, names, layout = _from_columns(header, rows, known)
    return PhotoLabels(LabelTable(files, labels, names), f"{path}: {layout}", [row.place for row in rows])


def _find_file_column(header: Row) -> int:
    """The column of file names: the one with a usual header, else the first."""
    for column, name in enumerate(header.cells):
        if name.lower() in FILE_COLUMNS:
            return column
    return 0


def _has_names(header: Row, rows: Sequence[Row]) -> bool:
    """Whether the cells, without the file names, have names of classes and not 0 and 1 for each class."""
    if all(LABEL_COLUMNS.fullmatch(name.lower()) for name in header.cells):
        return True
    if len(header.cells) > 1:
        return False
    cells = _all_cells(rows)
    return any(cell and cell.lower() not in VALUES for cell in cells)


def _all_cells(rows: Sequence[Row]) -> list[str]:
    cells = []
    for row in rows:
        cells += row.cells
    return cells


def _file_names(rows: Sequence[Row], column: int) -> list[str]:
    found: dict[str, int] = {}
    for row in rows:
        file = row.cells[column] if column < len(row.cells) else ""
        if not file or not file.isprintable():
            raise row.error(f"expected the name of an image file, got {shown(file)}")
        check_inside(file, f"{row.place}: the file")
        file = posixpath.normpath(file.replace("\\", "/"))  # ./a.jpg is a.jpg
        if file in found:
            raise row.error(f"{shown(file)} is already in row {found[file]}; write all labels in one row")
        found[file] = row.number
    return list(found)


def _from_names(
    rows: Sequence[Row], classes: list[str] | None, separator: str | None
) -> tuple[Tensor, list[str], str]:
    if separator is None:
        separator = _detect_separator(rows)
    names_of_rows = [_names(row, separator) for row in rows]
    if classes is None:
        classes = sorted(set().union(*names_of_rows))
    column_of = {name: column for column, name in enumerate(classes)}
    labels = torch.zeros(len(rows), len(classes), dtype=torch.int8)
    for k, (row, names) in enumerate(zip(rows, names_of_rows, strict=True)):
        for name in names:
            if name not in column_of:
                raise row.error(f"unknown label {shown(name)}; known are {listed(classes)}")
            labels[k, column_of[name]] = 1
    separated = SEPARATOR_NAMES.get(separator, f"separated by {separator!r}")
    spaced = next((name for name in classes if " " in name), None)
    layout = f"names of classes, {separated}"
    if separator == EACH_CELL and spaced is not None:
        layout += f' ({shown(spaced)} is one name: --separator " " would split it)'
    return labels, classes, layout


def _detect_separator(rows: Sequence[Row]) -> str:
    """The first of ``;|,`` that a cell has, else one name per cell; a space may be part of a name."""
    cells = _all_cells(rows)
    for sign in ";|,":
        if any(sign in cell for cell in cells):
            return sign
    return EACH_CELL


def _names(row: Row, separator: str) -> list[str]:
    if separator == EACH_CELL:
        names = [cell for cell in row.cells if cell]
    elif separator.isspace():
        names = " ".join(row.cells).split()
    else:
        joined = separator.join(row.cells).strip(separator + " \t")
        names = [name.strip() for name in joined.split(separator)]
    names = [same_spelling(name) for name in names]
    if not any(names):
        raise row.error("there is no label; add one, or remove the row")
    for name in names:
        if not _is_name(name):
            raise row.error(f"{shown(name)} cannot be a label; write names such as person;dog")
    return names


def _from_columns(
    header: Row, rows: Sequence[Row], classes: list[str] | None
) -> tuple[Tensor, list[str], str]:
    names = [same_spelling(name) for name in header.cells]
    counts = Counter(names)
    for name in names:
        if counts[name] > 1 or not _is_name(name):
            raise header.error(f"the column {shown(name)} is empty, repeated or not a name; rename it")
    classes = names if classes is None else classes
    differing = listed(sorted(set(names) ^ set(classes)))
    if differing:
        raise header.error(f"only one of train and test labels has {differing}; give both the same columns")
    labels = torch.tensor([_values(row, header) for row in rows], dtype=torch.int8)
    order = [names.index(name) for name in classes]
    return labels[:, order], classes, "a column of 0 and 1 for each class"


def _values(row: Row, header: Row) -> list[int]:
    n_cells, n_expected = 1 + len(row.cells), 1 + len(header.cells)  # with the file name
    if n_cells != n_expected:
        raise row.error(
            f"there are {n_cells} cells, but the header has {n_expected}; give each class a 0 or 1"
        )
    for name, cell in zip(header.cells, row.cells, strict=True):
        if cell.lower() not in VALUES:
            raise row.error(f"expected 0 or 1 for {shown(name)}, got {shown(cell)}")
    return [VALUES[cell.lower()] for cell in row.cells]


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME and text.isprintable()


def _read_rows(path: Path) -> list[Row]:
    """Rows that are not blank, with stripped cells."""
    text = _read_text(path)
    first_line = text.lstrip().partition("\n")[0]
    delimiter = next((sign for sign in "\t,;" if sign in first_line), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[Row] = []
    number = 0
    try:
        for number, cells in enumerate(reader, 1):
            stripped = [cell.strip() for cell in cells]
            if any(stripped):
                rows.append(Row(f"{path}, row {number}", number, stripped))
    except csv.Error as error:
        reason = str(error)
        if "field limit" in reason:
            reason = f"a cell is too long ({csv.field_size_limit()} characters are the limit)"
        raise ValueError(f"{path}, row {number + 1}: {reason}; is a quotation mark missing?") from None
    if not rows:
        raise ValueError(f"{path}, row 1: the file is empty; write a header and a row for each image.")
    return rows


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path} with labels.")
    content = read_file(path)
    try:
        text = content.decode("utf-8-sig")
        position = content.find(b"\0")
        if position < 0:
            return text
    except UnicodeDecodeError as error:
        position = error.start
    row = content[:position].count(b"\n") + 1
    raise ValueError(f"{path}, row {row}: this is not text in UTF-8; save the file as CSV in UTF-8.")
