"""Checks of arguments and files; messages name the place, its value and what it may be.

Types and ranges of values from files are declared and checked by pydantic; `first_problem` reads its errors.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError


def relative_path(path: str, start: str | os.PathLike | None) -> str:
    """A path seen from a folder; the absolute path if they are on different drives of Windows."""
    try:
        return os.path.relpath(path, start)
    except ValueError:
        return os.path.abspath(path)


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Raise a ValueError if a value is not one of the choices, a sequence or a ``Literal``."""
    allowed = tuple(choices) if isinstance(choices, Sequence) else get_args(choices)
    if value not in allowed:
        known = tuple(choice for choice in allowed if choice is not None)  # None: not given
        raise ValueError(f"{name} must be one of {known}, not {value!r}.")


def check_range(
    name: str,
    value: float | None,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> None:
    """Raise a ValueError if a number is out of range, infinite or NaN; None (not given) passes.

    Example:
        >>> check_range("clip", 1.5, least=0, below=1)
        Traceback (most recent call last):
        ValueError: clip must be at least 0 and below 1, not 1.5.
    """
    if value is None or (least <= value <= most and above < value < below):
        return
    limits = {"at least": least, "above": above, "at most": most, "below": below}
    words = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit))
    parts = [words] if math.isfinite(value) else ["a finite number", *filter(None, [words])]
    raise ValueError(f"{name} must be {', '.join(parts)}, not {value}.")


def check_whole_number(name: str, value: Any, least: int | None = None) -> None:
    """Raise a ValueError if an argument is not a whole number, or is below ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be a whole number, not {value!r}.")
    if least is not None and value < least:  # type: ignore[operator]
        raise ValueError(f"{name} must be at least {least}, not {value}.")


def check_shape(name: str, tensor: Any, shape: tuple[int | str, ...], reason: str = "") -> None:
    """Raise a ValueError if a tensor has another shape; text in it, such as "images", allows any length."""
    pairs = zip(tensor.shape, shape, strict=False)
    if tensor.ndim != len(shape) or any(n != wanted for n, wanted in pairs if isinstance(wanted, int)):
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"{name} must be [{wanted}]{reason}, not {list(tensor.shape)}.")


STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
"""How values are checked: no conversion except from whole to other numbers, and no unknown names."""
MAX_NAME = 200
"""Characters of a name: with order and seed, a folder's has at most 255, as systems allow."""
NAME = f"1 to {MAX_NAME} printable characters"
MAX_BYTES = 2**30
"""Size of the largest file that is read, unless its reader has another limit."""
BLOCK_BYTES = 2**20
UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}\.part")
"""Names of files that `write_atomically` has not finished."""
SHOWN_CHARACTERS = 60
SHOWN_NAMES = 20
_WANTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a finite number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_unicode": "text",
    "none_required": "none",
    "list_type": "a list",
    "dict_type": "an object with names",
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge:.12g}",
    "greater_than": "above {gt:.12g}",
    "less_than_equal": "at most {le:.12g}",
    "less_than": "below {lt:.12g}",
}
"""What a value must be, by the type of pydantic's error; errors of our own say it themselves."""


class Problem(NamedTuple):
    """What is wrong in some content: the place, what it must be, and what it is.

    Attributes:
        place: such as ``"pictures[0].image"``; empty for the content itself.
        missing: the name that the object at this place lacks, or None.
        unknown: the name that the object at this place must not have, or None.
    """

    place: str
    wanted: str
    value: Any
    missing: str | None = None
    unknown: str | None = None


def first_problem(error: ValidationError, content: Any) -> Problem:
    """The first problem that pydantic found in the content."""
    problem = _problem(error.errors()[0], content)
    wanted = [problem.wanted]
    # A value that may have one of several types has an error for each of them.
    for details in error.errors()[1:]:
        other = _problem(details, content)
        if other.place == problem.place and other.wanted not in wanted:
            wanted.append(other.wanted)
    return problem._replace(wanted=" or ".join(wanted))


def _problem(details: Any, content: Any) -> Problem:
    kind = details["type"]
    words = _WANTED.get(kind, details["msg"]).format(**details.get("ctx", {}))
    path = list(details["loc"])
    if kind == "missing":
        return Problem(_follow(path[:-1], content)[0], words, None, missing=str(path[-1]))
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return Problem(_follow(path[:-1], content)[0], words, None, unknown=cut(repr(path[-1])))
    return Problem(*_follow(path, content, words))


def _follow(path: Sequence[str | int], content: Any, wanted: str = "") -> tuple[str, str, Any]:
    """Place and value at the end of a path; it ends before names of types, which pydantic appends."""
    place = ""
    for step in path:
        if isinstance(content, (list, tuple)) and isinstance(step, int):
            place += f"[{step}]"
        elif isinstance(content, Mapping) and step in content:
            name = cut(repr(step)[1:-1])
            place += f".{name}" if place else name
        else:
            break
        content = content[step]
    return place, wanted, content


def read_file(path: str | os.PathLike, *, most: int = MAX_BYTES) -> bytes:
    """Content of a file; a ValueError names one that has more than ``most`` bytes."""
    blocks: list[bytes] = []
    n_read = 0
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size  # 0 for pipes, of which the end is not known
        check_size(path, size, most)
        try:
            # Python allocates what is asked for, so never `most`; a file is usually the first block.
            while block := file.read(BLOCK_BYTES if blocks else max(size, BLOCK_BYTES)):
                blocks.append(block)
                n_read += len(block)
                check_size(path, n_read, most)
            return b"".join(blocks)
        except MemoryError:
            raise MemoryError(
                f"{path} does not fit into the free memory: end other programs, or use a machine with more."
            ) from None


def read_text(path: str | os.PathLike) -> str:
    """Content of a text file in UTF-8; a ValueError names one that is something else."""
    try:
        return read_file(path).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8: save or download it again.") from None


@contextmanager
def naming_file(path: str | os.PathLike) -> Iterator[None]:
    """Add the file to an OSError that does not name it, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error


def file_to_write(path: str | os.PathLike) -> Path:
    """The file that a path leads to, through symbolic links; an OSError names one that cannot be replaced."""
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():  # a folder, or a device or pipe, which replacing would remove
        kind = "a folder" if path.is_dir() else "not a regular file"
        raise OSError(f"{path} is {kind} and cannot be replaced: give the name of a file.")
    return path


def write_atomically(path: str | os.PathLike, write: Callable[[BinaryIO], object]) -> None:
    """Replace a file at once, so that a reader finds either the old or the new one, even after a failure.

    The folder is created if needed; ``write`` receives the open binary file. Of a symbolic link, the file
    that it leads to is replaced.
    """
    path = file_to_write(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with naming_file(path), aside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def check_size(path: str | os.PathLike, n_bytes: int, most: int) -> None:
    """Raise a ValueError if a file has too many bytes to be what is expected."""
    if n_bytes > most:
        raise ValueError(
            f"{path} has more than {most / 2**20:,.0f} MiB, the most that is read: is it the right file?"
        )


def read_json(path: str | os.PathLike, *, most: int = MAX_BYTES) -> Any:
    """Content of a JSON file; a ValueError names one that is not JSON, or has more than ``most`` bytes."""

    def reject(constant: str) -> NoReturn:
        raise ValueError(f"it has the number {constant}, which is not JSON")

    content = read_file(path, most=most)
    try:
        return json.loads(content.decode("utf-8"), parse_constant=reject)
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply: give the file of a run or data set.") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON, or is damaged: {str(error).rstrip('.')}.") from None


def check_fields(value: Any, hints: Mapping[str, Any], place: str) -> None:
    """Raise a ValueError if an object lacks a field or has one of another type; it may have further ones.

    Args:
        value: content of a JSON file, or a part of it.
        hints: types by the names of fields.
        place: the file and the path in it, such as ``"results.json: nested"``.
    """
    if not isinstance(value, dict):
        reject_value(place, _WANTED["dict_type"], value)
    for name, hint in hints.items():
        if name not in value:
            raise ValueError(f"{place} has no {name!r}, which is required.")
        try:
            TypeAdapter(hint, config=STRICT).validate_python(value[name])
        except ValidationError as error:
            problem = first_problem(error, value[name])
            separator = "" if problem.place.startswith("[") or not problem.place else "."
            reject_value(f"{place}.{name}{separator}{problem.place}", problem.wanted, problem.value)


def reject_value(place: str, wanted: str, value: Any) -> NoReturn:
    """Raise a ValueError about a value, on one line and cut if it is long."""
    raise ValueError(f"{place} must be {wanted}, but is {shown(value)}.")


def shown(value: Any) -> str:
    """A value on one line, cut if it is long; of lists and objects only the length."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object with {len(value)} names"
    if isinstance(value, str) and len(value) > SHOWN_CHARACTERS:
        return repr(value[: SHOWN_CHARACTERS - 1] + "…")
    return cut(repr(value))


def listed(names: Iterable[Any]) -> str:
    """Names for a message, separated by commas: the first ones, each cut if it is long, and how many more."""
    names = list(names)
    first = ", ".join(cut(str(name)) for name in names[:SHOWN_NAMES])
    n_more = len(names) - SHOWN_NAMES
    return f"{first} and {n_more} more" if n_more > 0 else first


def shorten(message: str, most: int = 1000) -> str:
    """A message without its middle if it is long: its beginning says what is wrong, its end what to do."""
    if len(message) <= most:
        return message
    half = most // 2
    return f"{message[:half]} … {message[-half:]}"


def cut(text: str) -> str:
    """The beginning of a text that is too long for a message."""
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def is_name(text: str) -> bool:
    """Whether a text can be the name of a class, or of a row of a table."""
    return text.strip() != "" and len(text) <= MAX_NAME and text.isprintable()


def same_spelling(name: str) -> str:
    """A name in Unicode's form NFC: systems write é as one character or as two, which look the same."""
    return unicodedata.normalize("NFC", name)


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """A suggestion for a misspelled name, to be appended to a message; empty if none is similar."""
    found = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.75)
    return f" (did you mean {found[0]}?)" if found else ""
