"""Photos of your own, with labels in a CSV file."""

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from avalanche_agcn.benchmarks.image_files import (
    IMAGE_FILE,
    ImageFiles,
    Truncated,
    check_inside,
    check_readable,
    plain_name,
)
from avalanche_agcn.benchmarks.tables import LabelTable
from avalanche_agcn.checks import is_name, listed, read_file, same_spelling, shown

FILE_COLUMNS = {"file", "files", "filename", "file_name", "image", "images", "image_name", "path", "photo"}
LABEL_COLUMNS = re.compile(r"(label|tag|class|classe|category|categorie)s?[ _]?\d*")
"""Headers such as ``labels`` or ``label2``, of a column with names of classes instead of a class."""
LONG_COLUMN = re.compile(r"label|tag|class|category")
"""Headers of a column with one name: a photo may then have several rows."""
SPLIT_COLUMN = "split"
SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
SPLITS |= dict.fromkeys(("val", "valid", "validation", "dev"), "val")
OTHER_COLUMNS = {"id", "index", SPLIT_COLUMN}
"""Headers of columns that are no class, unless they have 0 and 1 only."""
EXCEL_SEPARATOR = re.compile(r"\Asep=.[\r\n]+")
"""A first line that tells Excel the delimiter, which Excel does not show as a row."""
VALUES = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
Log = Callable[[str], None]
EACH_CELL = ""
SEPARATOR_NAMES = {EACH_CELL: "each in a cell", " ": "separated by spaces"}


class Row(NamedTuple):
    """A row of a CSV file; the first has number 1, as in a spreadsheet."""

    place: str  # "labels.csv, row 7"
    number: int
    cells: list[str]

    def select(self, columns: Sequence[int]) -> "Row":
        """The same row with some of its cells."""
        return self._replace(cells=[self.cells[column] for column in columns if column < len(self.cells)])

    def error(self, text: str) -> ValueError:
        """An error about this row."""
        return ValueError(f"{self.place}: {text}.")


class CSVColumns(NamedTuple):
    """How to read a CSV file; see `multilabel_csv`."""

    separator: str | None = None
    file_column: str | None = None
    label_columns: tuple[str, ...] = ()


AS_USUAL = CSVColumns()


class PhotoLabels(NamedTuple):
    """Labels of photos, and how they were read."""

    table: LabelTable
    layout: str  # the file and the layout that was recognised, in words
    places: list[str]  # where each photo is named: "labels.csv, row 7"
    splits: list[str] | None = None  # "train", "test" or "val" for each photo, if the file says so

    @property
    def divides(self) -> bool:
        """Whether the file says which photos to test on; a column with train alone does not."""
        return self.splits is not None and set(self.splits) != {"train"}

    def table_of(self, split: str) -> LabelTable:
        """The photos of one split."""
        assert self.splits is not None
        return self.table.rows(torch.tensor([own == split for own in self.splits]))


def multilabel_csv(
    path: str | os.PathLike,
    images: str | os.PathLike,
    *,
    class_names: Sequence[str] | None = None,
    separator: str | None = None,
    file_column: str | None = None,
    label_columns: Sequence[str] = (),
    split: str | None = None,
    truncated: Truncated = "warn",
    check_images: bool = True,
    log: Log = print,
) -> ImageFiles:
    """Photos with labels from a CSV file, for `multilabel_benchmark`.

    The file has one of three layouts, recognised by the header:

    - ``file,labels`` and rows such as ``beach.jpg,person;dog``: names separated by semicolons, pipes or
      commas; they may contain spaces, as in ``hot dog``;
    - ``file,label`` and rows such as ``beach.jpg,person`` and ``beach.jpg,dog``: one label per row;
    - ``file,person,dog,car`` and rows such as ``beach.jpg,1,1,0``: a column of 0 and 1 for each class.

    Other columns than ``file`` and ``labels`` are ignored, as in ``id,file,labels,split``, except ``split``.

    Args:
        path: the CSV file, in UTF-8; columns separated by commas, semicolons or tabs.
        images: folder that the file names are relative to.
        class_names: classes in the order of the columns of ``targets``, such as those of the train file for
            the test file. By default names in alphabetical order, or the columns of the file.
        separator: between the names in a cell, such as ``" "``; by default the first of ``;|,`` that a
            cell has.
        file_column: header of the column of file names, if it is not a usual one such as ``file``.
        label_columns: headers of the columns of labels, names or 0 and 1; all others are ignored.
        split: only photos with this value in the column ``split``: ``"train"``, ``"test"`` or ``"val"``.
        truncated: what to do with a truncated photo; see `ImageFiles`.
        check_images: whether to open all photos now, so that broken ones are found before training.
        log: receives one line about the layout that was recognised.

    Raises:
        OSError: if photos cannot be opened; names rows and files.
        ValueError: if a row does not fit; names file, row and value.
    """
    chosen = CSVColumns(separator, file_column, tuple(label_columns))
    read = read_csv(path, class_names=class_names, chosen=chosen)
    if split is not None:
        if read.splits is None:
            raise ValueError(f"{path} has no column {SPLIT_COLUMN} with train and test: leave split out.")
        places = [place for place, own in zip(read.places, read.splits, strict=True) if own == split]
        read = read._replace(table=read.table_of(split), places=places)
    return open_photos(images, read, truncated=truncated, check_images=check_images, log=log)


def open_photos(
    images: str | os.PathLike,
    labels: PhotoLabels,
    *,
    truncated: Truncated,
    log: Log,
    check_images: bool = True,
) -> ImageFiles:
    """Open the photos of a file of labels, and log one line about the file. See `multilabel_csv`."""
    table = labels.table
    n_unlabelled = int((~table.labels.any(1)).sum())
    without = f", {n_unlabelled} without any label" if n_unlabelled else ""
    log(f"{labels.layout}; {len(table.files)} images{without}, {len(table.class_names)} classes.")
    photos = ImageFiles(images, table.files, table.labels, class_names=table.class_names, truncated=truncated)
    if check_images:
        check_readable(photos, labels.places)
    return photos


def read_csv(
    path: str | os.PathLike, *, class_names: Sequence[str] | None = None, chosen: CSVColumns = AS_USUAL
) -> PhotoLabels:
    """Labels of a CSV file, without its photos; see `multilabel_csv`."""
    separator, file_column, label_columns = chosen
    header, *rows = _read_rows(Path(path))
    has_header = file_column is not None or len(label_columns) > 0
    if not has_header and any(IMAGE_FILE.fullmatch(name) for name in header.cells):
        if any(name in VALUES for name in header.cells):
            raise header.error("there is no header; name the columns: file,cat,dog")
        rows = [header, *rows]
        header = header._replace(cells=["file", "labels"])
    if len(header.cells) < 2:
        name = shown(header.cells[0])
        raise header.error(f"{name} is the only column; separate file and labels by commas")
    if not rows:
        raise header.error("there is a header but no image; add a row for each image")
    columns = _find_columns(header, rows, file_column, label_columns)
    files = _file_names(rows, columns)
    splits, about_split = _read_splits(header, files, rows, columns)
    photos = _rows_of_photos(files, rows, columns)
    label_rows = list(photos.values())
    known = None if class_names is None else [same_spelling(name) for name in class_names]
    if columns.has_names:
        labels, names, layout = _from_names(label_rows, known, separator)
        if len(photos) < len(rows):
            layout += f", in {len(rows)} rows"
    else:
        labels, names, layout = _from_columns(header, label_rows, known, columns.labels)
    return PhotoLabels(
        LabelTable(list(photos), labels, names),
        f"{path}: {layout}{_describe_unused(header, columns)}{about_split}",
        [row.place for row in label_rows],
        splits,
    )


class _Columns(NamedTuple):
    """Which columns have what; those of labels may continue beyond the header, with a name in each cell."""

    file: int
    labels: list[int]
    has_names: bool  # else 0 and 1 for each class
    is_long: bool  # whether a photo may have several rows, with a label each


def _find_columns(
    header: Row, rows: Sequence[Row], file_column: str | None, label_columns: Sequence[str]
) -> _Columns:
    """The columns that were chosen by their headers; those that were not, from headers and cells."""
    file = _find_file_column(header) if file_column is None else _named_column(header, file_column)
    if label_columns:
        chosen = [_named_column(header, name) for name in label_columns]
        has_names = _has_words(rows, chosen)
        return _Columns(file, chosen, has_names, is_long=has_names and len(chosen) == 1)
    n_columns = len(header.cells)
    longest_row = max(len(row.cells) for row in rows)
    beyond_header = list(range(n_columns, longest_row))  # of further names, as in a.jpg,dog,cat
    others = [column for column in range(n_columns) if column != file]
    named = [column for column in others if LABEL_COLUMNS.fullmatch(header.cells[column].lower())]
    # A column such as "tag1" that has only 0 and 1 is a class, unless no other column could have labels.
    if named and (named == others or _has_words(rows, named)):
        labels = named + beyond_header
        is_long = len(labels) == 1 and LONG_COLUMN.fullmatch(header.cells[labels[0]].lower()) is not None
        return _Columns(file, labels, has_names=True, is_long=is_long)
    classes = [column for column in others if _may_have_labels(header, rows, column)]
    if not classes:
        raise header.error("there is no column of labels; name one labels, or choose it by --label-columns")
    labels = classes + beyond_header
    # A single column with any header may also have names instead of 0 and 1.
    has_names = len(classes) == 1 and _has_words(rows, labels)
    return _Columns(file, labels, has_names, is_long=False)


def _find_file_column(header: Row) -> int:
    """The column of file names: the one with a usual header, else the first."""
    for column, name in enumerate(header.cells):
        if name.lower() in FILE_COLUMNS:
            return column
    return 0


def _named_column(header: Row, name: str) -> int:
    if name not in header.cells:
        raise header.error(f"there is no column {shown(name)}; the columns are {listed(header.cells)}")
    return header.cells.index(name)


def _may_have_labels(header: Row, rows: Sequence[Row], column: int) -> bool:
    """Whether a column is not one such as ``id``; such a name with only 0 and 1 in its cells is a class."""
    return header.cells[column].lower() not in OTHER_COLUMNS or not _has_words(rows, [column])


def _has_words(rows: Sequence[Row], columns: Sequence[int]) -> bool:
    """Whether the columns have anything but 0 and 1."""
    cells = _all_cells([row.select(columns) for row in rows])
    return any(cell and cell.lower() not in VALUES for cell in cells)


def _describe_unused(header: Row, columns: _Columns) -> str:
    used = {columns.file, *columns.labels}
    names = [name for column, name in enumerate(header.cells) if column not in used]
    unused = [shown(name) for name in names if name.lower() != SPLIT_COLUMN]
    return f" (columns not used: {listed(unused)})" if unused else ""


def _all_cells(rows: Sequence[Row]) -> list[str]:
    cells = []
    for row in rows:
        cells += row.cells
    return cells


def _file_names(rows: Sequence[Row], columns: _Columns) -> list[str]:
    """The file of each row."""
    files: list[str] = []
    found: dict[str, int] = {}
    for row in rows:
        file = row.cells[columns.file] if columns.file < len(row.cells) else ""
        if not file or not file.isprintable():
            raise row.error(f"expected the name of an image file, got {shown(file)}")
        check_inside(file, f"{row.place}: the file")
        file = plain_name(file)
        if file in found and not columns.is_long:
            raise row.error(
                f"{shown(file)} is already in row {found[file]}; write all labels in one row, or name the "
                "column label for one label per row"
            )
        found.setdefault(file, row.number)
        files.append(file)
    return files


def _rows_of_photos(files: Sequence[str], rows: Sequence[Row], columns: _Columns) -> dict[str, Row]:
    """The cells of labels by photo; several rows of a photo are joined to its first."""
    photos: dict[str, Row] = {}
    for file, row in zip(files, rows, strict=True):
        labels = row.select(columns.labels)
        if file in photos:
            labels = photos[file]._replace(cells=photos[file].cells + labels.cells)
        photos[file] = labels
    return photos


def _read_splits(
    header: Row, files: Sequence[str], rows: Sequence[Row], columns: _Columns
) -> tuple[list[str] | None, str]:
    """The split of each photo, if a column has it, and words for the log if that column cannot be used."""
    names = [name.lower() for name in header.cells]
    if SPLIT_COLUMN not in names or names.index(SPLIT_COLUMN) in columns.labels:
        return None, ""
    column = names.index(SPLIT_COLUMN)
    values = [row.cells[column] if column < len(row.cells) else "" for row in rows]
    if not any(value.lower() in SPLITS for value in values):  # such as the number of a fold
        return None, f" (column not used: {SPLIT_COLUMN} has {shown(values[0])}, not train and test)"
    splits: dict[str, str] = {}
    for file, row, value in zip(files, rows, values, strict=True):
        if value.lower() not in SPLITS:
            raise row.error(
                f"{SPLIT_COLUMN} has {shown(value)}; write train, test or val, or rename the column to "
                "divide the photos at random"
            )
        split = SPLITS[value.lower()]
        if splits.setdefault(file, split) != split:
            raise row.error(f"{shown(file)} is in two splits, {splits[file]} and {split}; choose one")
    return list(splits.values()), ""


def _from_names(
    rows: Sequence[Row], classes: list[str] | None, separator: str | None
) -> tuple[Tensor, list[str], str]:
    if separator is None:
        separator = _detect_separator(rows)
    else:
        _check_separator(rows, separator)
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


def _check_separator(rows: Sequence[Row], separator: str) -> None:
    """Reject a separator that no cell has, if another one seems to be used."""
    if any(separator in cell for cell in _all_cells(rows)):
        return
    for row in rows:
        for cell in row.cells:
            other = next((sign for sign in ";|" if sign in cell), None)
            if other is not None:
                raise row.error(
                    f"{shown(cell)} looks like several names, but no cell has the separator "
                    f"{shown(separator)}; give --separator {other!r} or leave it out"
                )


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
        if not is_name(name):
            raise row.error(f"{shown(name)} cannot be a label; write names such as person;dog")
    return names


def _from_columns(
    header: Row, rows: Sequence[Row], classes: list[str] | None, columns: Sequence[int]
) -> tuple[Tensor, list[str], str]:
    n_others = len(header.cells)
    header = header.select(columns)
    n_others -= len(header.cells)
    names = [same_spelling(name) for name in header.cells]
    counts = Counter(names)
    for name in names:
        if counts[name] > 1 or not is_name(name):
            raise header.error(f"the column {shown(name)} is empty, repeated or not a name; rename it")
    classes = names if classes is None else classes
    differing = listed(sorted(set(names) ^ set(classes)))
    if differing:
        raise header.error(f"only one of train and test labels has {differing}; give both the same columns")
    labels = torch.tensor([_values(row, header, n_others) for row in rows], dtype=torch.int8)
    order = [names.index(name) for name in classes]
    return labels[:, order], classes, "a column of 0 and 1 for each class"


def _values(row: Row, header: Row, n_others: int) -> list[int]:
    n_cells, n_expected = n_others + len(row.cells), n_others + len(header.cells)  # with the file name
    if n_cells != n_expected:
        raise row.error(
            f"there are {n_cells} cells, but the header has {n_expected}; give each class a 0 or 1"
        )
    for name, cell in zip(header.cells, row.cells, strict=True):
        if cell.lower() not in VALUES:
            raise row.error(f"expected 0 or 1 for {shown(name)}, got {shown(cell)}")
    return [VALUES[cell.lower()] for cell in row.cells]


def _read_rows(path: Path) -> list[Row]:
    """Rows that are not blank, with stripped cells."""
    text = _read_text(path)
    text = EXCEL_SEPARATOR.sub("", text)
    first_line = re.split(r"[\r\n]", text.lstrip(), maxsplit=1)[0]
    delimiter = next((sign for sign in "\t,;" if sign in first_line), ",")
    # Without skipinitialspace, a quotation mark after a blank is a part of a name.
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)
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
