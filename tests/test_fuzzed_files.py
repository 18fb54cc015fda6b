"""Files of every kind that we read, changed at random: each is read, or named in one short sentence."""

import hashlib
import json
import warnings
import zipfile
from io import BytesIO

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch.utils.data import IterableDataset, TensorDataset

from avalanche_agcn.benchmarks import multilabel_benchmark
from avalanche_agcn.benchmarks.coco import read_instances
from avalanche_agcn.benchmarks.csv_files import read_csv
from avalanche_agcn.benchmarks.experience import UNLABELLED, encode
from avalanche_agcn.benchmarks.nus_wide import read_image_list, read_nus_wide
from avalanche_agcn.benchmarks.split_lists import read_split_lists
from avalanche_agcn.benchmarks.voc import VOC_CLASSES, read_objects, read_voc
from avalanche_agcn.experiments import checkpoint
from avalanche_agcn.experiments.checkpoint import MAGIC, DamagedState, load_state, save_state
from avalanche_agcn.experiments.cli import main, read_config
from avalanche_agcn.experiments.exit_codes import one_sentence
from avalanche_agcn.experiments.results import read_results, read_table, write_table
from avalanche_agcn.models import (
    MultiLabelClassifier,
    create_backbone,
    load_model,
    load_word_vectors,
    save_model,
    saved,
    word_vectors,
)

LONGEST_MESSAGE = 1100
TOKENS = [
    *(b"\x00", b"\xff\xfe", b"\n", b"\r\n", b",", b";", b'"', b"\xc3\xa9", b"e\xcc\x81", b"\xe2\x80\xae"),
    *(b"nan", b"-inf", b"1e999", b"-1", b"0", b"9" * 400, b"null", b"{}", b"[" * 2000, b"x" * 100_000),
    *(b"../../x", b"C:\\x", b"/etc/passwd", b"=1+1", b"<script>", b"PK\x03\x04", b"PK\x05\x06"),
]


def fuzz(n_cases):
    """Try a test with that many drawn cases, the same each time."""
    how = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
    return lambda test: seed(17)(settings(max_examples=n_cases, **how)(test))


@st.composite
def changes(draw):
    """A function that cuts, repeats, overwrites or inserts a few parts of some bytes."""
    steps = draw(
        st.lists(
            st.tuples(st.sampled_from("cdri"), st.floats(0, 1), st.integers(0, 40), st.sampled_from(TOKENS)),
            min_size=1,
            max_size=3,
        )
    )

    def change(content):
        for kind, share, length, token in steps:
            begin = int(share * len(content))
            part = content[begin : begin + length]
            rest = content[begin + length :]
            middle = {"c": b"", "d": part + part, "r": token, "i": token + part}[kind]
            content = content[:begin] + middle + rest
        return content

    return change


def check_sentence(error, name=""):
    """The message of an error is short, and names the file."""
    assert name in str(error)
    text = str(error) if isinstance(error, DamagedState) else one_sentence(error)
    assert 10 < len(text) < LONGEST_MESSAGE
    assert "Error:" not in text


def write_zip(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


LISTS = {
    "task0/train.csv": "a.jpg,1,0\nb.jpg,0,1\n",
    "task0/test.csv": "x.jpg,1,0\n",
    "task1/train.csv": "c.jpg,1\n",
    "task1/test.csv": "x.jpg,1,0,1\ny.jpg,0,0,1\n",
}
COCO = {
    "images": [{"id": 1, "file_name": "a.jpg"}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 2}],
    "categories": [{"id": 2, "name": "café"}],
}
VOC_XML = "<annotation><filename>a.jpg</filename><object><name>cat</name></object></annotation>"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run."""
    out = tmp_path_factory.mktemp("finished")
    assert main("coco", None, ["--smoke", "--method", "finetuning", "--out", str(out)]) == 0
    return out / "finetuning-seed0"


@pytest.fixture(scope="module")
def examples(tmp_path_factory, finished):
    """A valid file of each kind, with its reader."""
    folder = tmp_path_factory.mktemp("examples")
    write_zip(folder / "lists.zip", LISTS)
    np.savez(folder / "words.npz", words=np.array(["cat", "dog"]), vectors=np.eye(2))
    write_table(folder / "results.jsonl", [read_results(finished / "results.json")])
    texts = {
        "names.csv": "file,labels\na.jpg,cat;dog\nb.jpg,café\n",
        "columns.csv": "file,cat,dog\na.jpg,1,0\nb.jpg,0,1\n",
        "instances.json": json.dumps(COCO),
        "config.toml": 'method = "er"\nlr = 1e-4\n',
        "config.json": '{"method": "er", "seed": [0, 1]}',
        "words.txt": "cat 1 2 3\ndog 4 5 6\n",
        "Imagelist.txt": "a\\1.jpg\nb\\2.jpg\n",
        "objects.xml": VOC_XML,
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "results.json").write_bytes((finished / "results.json").read_bytes())
    return folder


def read_words(path):
    return load_word_vectors(["cat", "hot dog"], path, missing="random")


READERS = {
    "lists.zip": read_split_lists,
    "names.csv": read_csv,
    "columns.csv": read_csv,
    "instances.json": read_instances,
    "config.toml": read_config,
    "config.json": read_config,
    "words.txt": read_words,
    "words.npz": read_words,
    "Imagelist.txt": read_image_list,
    "objects.xml": read_objects,
    "results.json": read_results,
    "results.jsonl": read_table,
}


@pytest.mark.parametrize("n", [25, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", READERS)
def test_a_changed_file_is_read_or_named_in_a_short_sentence(examples, tmp_path, name, n):
    content = (examples / name).read_bytes()
    READERS[name](examples / name)

    @fuzz(n)
    @given(change=changes())
    def check(change):
        (tmp_path / name).write_bytes(change(content))
        try:
            with warnings.catch_warnings(action="ignore"):
                READERS[name](tmp_path / name)
        except (ValueError, OSError) as error:
            check_sentence(error, name)

    check()


@pytest.mark.parametrize("n", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_changed_lists_in_a_zip_give_all_labels_or_a_short_sentence(tmp_path, n):
    @fuzz(n)
    @given(name=st.sampled_from(sorted(LISTS)), change=changes(), new_name=st.none() | st.text(max_size=30))
    def check(name, change, new_name):
        files = LISTS | {new_name or name: change(LISTS[name].encode())}
        write_zip(tmp_path / "lists.zip", files)
        try:
            with warnings.catch_warnings(action="ignore"):
                lists = read_split_lists(tmp_path / "lists.zip")
        except (ValueError, OSError) as error:
            check_sentence(error)
        else:
            for images in lists.train + lists.test:
                assert len(images.names) == len(images.labels)
                assert set(images.labels.unique().tolist()) <= {0, 1}

    check()


@pytest.mark.parametrize("n", [15, pytest.param(500, marks=pytest.mark.slow)])
def test_changed_class_lists_of_data_sets_give_labels_or_a_short_sentence(tmp_path, n):
    labels = tmp_path / "Groundtruth" / "AllLabels"
    sets = tmp_path / "ImageSets" / "Main"
    labels.mkdir(parents=True)
    sets.mkdir(parents=True)
    for name in VOC_CLASSES:
        (sets / f"{name}_train.txt").write_text("1 -1\n2  1\n")

    @fuzz(n)
    @given(change=changes())
    def check(change):
        (labels / "Labels_sky.txt").write_bytes(change(b"0\n1\n1\n"))
        (sets / "train.txt").write_bytes(change(b"1\n2\n"))
        (sets / "cat_train.txt").write_bytes(change(b"1 -1\n2  1\n"))
        for read in (lambda: read_nus_wide(tmp_path, ["a", "b", "c"]), lambda: read_voc(tmp_path, "train")):
            try:
                table = read()
            except (ValueError, OSError) as error:
                check_sentence(error)
            else:
                assert table.labels.shape == (len(table.files), len(table.class_names))
                assert set(table.labels.unique().tolist()) <= {0, 1}

    check()


@pytest.mark.parametrize("n", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_changed_state_with_a_valid_checksum_is_read_or_named(finished, tmp_path, n):
    content = (finished / "state.bin").read_bytes()
    begin = len(MAGIC) + hashlib.sha256().digest_size
    path = tmp_path / "state.bin"

    @fuzz(n)
    @given(change=changes(), sign=st.booleans())
    def check(change, sign):
        payload = change(content[begin:])
        checksum = hashlib.sha256(payload).digest() if sign else content[len(MAGIC) : begin]
        path.write_bytes(MAGIC + checksum + payload)
        try:
            load_state(path)
        except DamagedState as error:
            check_sentence(error, "state.bin")

    check()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a saved model."""
    folder = tmp_path_factory.mktemp("model")
    network = MultiLabelClassifier(create_backbone("small"), n_classes=2)
    save_model(network, folder, class_names=["cat", "dog"])
    return folder


def write_model(folder, description, content):
    """Write the files of a model with the digest of its tensors."""
    digest = hashlib.sha256(content).hexdigest()
    (folder / "model.json").write_text(json.dumps(description | {"tensors": digest}))
    (folder / "model.safetensors").write_bytes(content)


@pytest.mark.parametrize("n", [10, pytest.param(300, marks=pytest.mark.slow)])
def test_changed_tensors_with_a_valid_digest_are_read_or_named(model, tmp_path, n):
    description = json.loads((model / "model.json").read_text())
    content = (model / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")

    @fuzz(n)
    @given(change=changes(), in_header=st.booleans(), fit_length=st.booleans())
    def check(change, in_header, fit_length):
        changed = change(content[8:header]) + content[header:] if in_header else change(content[8:])
        length = header - 8 + (len(changed) + 8 - len(content) if fit_length else 0)
        write_model(tmp_path, description, max(length, 0).to_bytes(8, "little") + changed)
        try:
            load_model(tmp_path)
        except ValueError as error:
            check_sentence(error, "model.safetensors")

    check()


NUMBERS = st.integers(-(2**70), 2**70) | st.floats() | st.booleans() | st.none()
CELLS = st.sampled_from([0, 1, 0.0, 1.0, True, False, float("nan")])
DTYPES = [torch.bool, torch.uint8, torch.int8, torch.long, torch.float16, torch.bfloat16, torch.float64]


@st.composite
def odd_targets(draw):
    """Targets of many types: most of them are no matrix of 0 and 1."""
    n_images, n_classes = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    cells = CELLS if draw(st.booleans()) else CELLS | NUMBERS | st.text(max_size=3)
    rows = [[draw(cells) for _ in range(n_classes)] for _ in range(n_images)]
    kind = draw(st.sampled_from(["rows", "ragged", "sets", "tensors", "array", "object", "one", "generator"]))
    if kind in ("rows", "tensors", "array"):
        matrix = torch.tensor([[draw(CELLS) == 1 for _ in range(n_classes)] for _ in range(n_images)])
        matrix = matrix.reshape(n_images, n_classes).to(draw(st.sampled_from(DTYPES)))
        as_kind = {"rows": lambda: matrix, "tensors": lambda: list(matrix), "array": matrix.double().numpy}
        found = as_kind[kind]()
        return found.to_sparse() if kind == "rows" and draw(st.booleans()) else found
    others = {
        "ragged": [*rows, [1] * (n_classes + 1)],
        "sets": [{"cat"}, set()],
        "object": np.array([*rows, None], dtype=object),
        "one": draw(NUMBERS | st.text(max_size=5)),
        "generator": (row for row in rows),
    }
    return others[kind] if draw(st.booleans()) else rows


@pytest.mark.parametrize("n", [60, pytest.param(3000, marks=pytest.mark.slow)])
def test_odd_targets_become_the_codes_of_their_cells_or_a_short_sentence(n):
    @fuzz(n)
    @given(targets=odd_targets())
    def check(targets):
        try:
            codes = encode(targets)
        except ValueError as error:
            check_sentence(error)
            return
        rows = targets.to_dense() if isinstance(targets, torch.Tensor) else targets
        expected = [[UNLABELLED if cell != cell else int(cell) for cell in row] for row in rows]
        assert codes.tolist() == expected

    check()


class Endless(IterableDataset):
    targets = torch.eye(2)

    def __iter__(self):
        return iter(self.targets)


@pytest.mark.parametrize("data", [None, 3, "text", [1, 2], {}, torch.eye(2), Endless(), iter([]), object])
def test_data_that_cannot_be_indexed_or_has_no_targets_is_named(data):
    with pytest.raises(ValueError, match=r"The train dataset \(\w+\) (has no `targets`|cannot be indexed)"):
        multilabel_benchmark(data, data, n_experiences=1)


def test_names_and_orders_are_compared_in_one_spelling():
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    train = TensorDataset(torch.rand(2, 3))
    train.targets = torch.eye(2)
    test = TensorDataset(torch.rand(2, 3))
    test.targets = torch.eye(2)
    with pytest.raises(ValueError, match="2 different names"):
        multilabel_benchmark(train, test, n_experiences=2, class_names=[composed, decomposed])
    train.class_names, test.class_names = [composed, "cat"], [decomposed, "cat"]
    benchmark = multilabel_benchmark(train, test, n_experiences=2, class_order=["cat", decomposed])
    assert benchmark.class_names == ["cat", composed]


def test_a_state_that_is_too_large_or_compressed_is_named(tmp_path, monkeypatch):
    path = tmp_path / "state.bin"
    save_state(path, {"a": torch.zeros(100_000)})
    content = BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as small:
        for name in archive.namelist():
            small.writestr(name, archive.read(name))
    payload = content.getvalue()
    assert len(payload) < 10_000
    (tmp_path / "small.bin").write_bytes(MAGIC + hashlib.sha256(payload).digest() + payload)
    with pytest.raises(DamagedState, match=r"small.bin has the right checksum, but not only tensors"):
        load_state(tmp_path / "small.bin")
    monkeypatch.setattr(checkpoint, "MAX_STATE_BYTES", 1000)
    with pytest.raises(DamagedState, match=r"state.bin has more than 0 MiB, the most that is read"):
        load_state(path)


def test_a_model_that_is_too_large_is_named_and_its_names_are_cut(model, tmp_path, monkeypatch):
    description = json.loads((model / "model.json").read_text())
    write_model(tmp_path, description, save({"x" * 10**5: torch.zeros(1), "weight": torch.zeros([1] * 60)}))
    with pytest.raises(ValueError, match=r"model.safetensors are not a model") as raised:
        load_model(tmp_path)
    check_sentence(raised.value)
    monkeypatch.setattr(saved, "MAX_TENSORS_BYTES", 1000)
    with pytest.raises(ValueError, match=r"model.safetensors has more than 0 MiB, the most that is read"):
        load_model(model)
    monkeypatch.setattr(saved, "MAX_DESCRIPTION_BYTES", 100)
    with pytest.raises(ValueError, match=r"model.json has more than 0 MiB, the most that is read"):
        load_model(model)


def test_text_of_word_vectors_is_limited_as_a_whole_and_by_line(tmp_path, monkeypatch):
    path = tmp_path / "words.txt"
    path.write_text("cat 1 2\n" + "dog " + "1 " * 5000)
    monkeypatch.setattr(word_vectors, "MAX_BYTES_OF_LINE", 1000)
    with pytest.raises(ValueError, match=r"Line 2 of .*words.txt' has more than 1000 bytes"):
        load_word_vectors(["cat"], path)
    monkeypatch.setattr(word_vectors, "MAX_BYTES_OF_TEXT", 1000)
    with pytest.raises(ValueError, match=r"words.txt has more than 0 MiB, the most that is read"):
        load_word_vectors(["cat"], path)
    with pytest.raises(KeyError) as raised:
        load_word_vectors([f"{k}" * 10_000 for k in range(200)])
    assert len(str(raised.value)) < 2500
