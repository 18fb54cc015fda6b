"""Labels of many photos: each is found, read and written once, whatever is broken or killed meanwhile."""

import csv
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from avalanche_agcn.__main__ import UNREADABLE, main
from avalanche_agcn.benchmarks.image_files import load_image
from avalanche_agcn.experiments.prediction_files import OutputFile, format_begin, format_rows
from avalanche_agcn.experiments.predictions import find_photos, predict_files, read_list
from avalanche_agcn.models import MultiLabelClassifier, create_backbone, load_model, save_model
from avalanche_agcn.models.saved import Prediction

NAMES = ["cat", "dog", "=1+1"]
TO_FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
NOBODY = 65534  # a user without rights
N_PHOTOS = 12
BROKEN = 5


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Folder of a model, whose probabilities tell photos apart, and which takes photos of any size."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    model = MultiLabelClassifier(create_backbone("small", pretrained=True), 3)
    save_model(model, folder, class_names=NAMES, transform=v2.Compose(TO_FLOAT))
    return folder


@pytest.fixture
def photos(tmp_path):
    """A folder with folders of images of two sizes, and files that are none."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "photos"
    for k in range(N_PHOTOS):
        path = folder / f"{k % 3}" / f"{k:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 255, (32 + 8 * (k % 4 == 3), 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    (folder / "notes.txt").write_text("no photo")
    (folder / ".hidden.png").write_bytes(b"")
    return folder


def test_a_folder_that_cannot_be_listed_is_named():
    with tempfile.TemporaryDirectory() as name:  # pytest's folders are those of one user
        folder = Path(name)
        for inner in ("open", "secret"):
            (folder / inner).mkdir()
            Image.new("RGB", (8, 8)).save(folder / inner / "1.png")
        folder.chmod(0o755)
        (folder / "secret").chmod(0)
        user = os.geteuid()
        if user == 0:  # root may list everything
            os.seteuid(NOBODY)
        try:
            found = list(find_photos([name]))
            assert found == [str(folder / "open" / "1.png"), str(folder / "secret")]
            with pytest.raises(PermissionError, match=r"secret is a folder that cannot be listed: check its"):
                load_image(found[1])
        finally:
            os.seteuid(user)
            (folder / "secret").chmod(0o755)


def all_photos(folder):
    return sorted(map(str, folder.glob("*/*.png")))


def rows_of(path):
    """Probabilities by photo of a file of predictions; an error if a photo is there twice."""
    text = Path(path).read_text()
    if path.suffix == ".csv":
        rows = list(csv.reader(io.StringIO(text)))[1:]
        pairs = [(photo, list(map(float, cells))) for photo, _, *cells in rows]
    else:
        rows = map(json.loads, text.splitlines())
        pairs = [(row["image"], list(row["probabilities"].values())) for row in rows]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def expected_rows(run, photos):
    """Probabilities by photo, predicted one by one."""
    model = load_model(run)
    return {photo: list(model.predict(photo)[0].probabilities.values()) for photo in photos}


def assert_same_rows(found, expected):
    assert list(found) == list(expected)
    for photo, row in expected.items():
        assert found[photo] == pytest.approx(row, abs=1e-6)


def test_files_folders_patterns_and_lists_are_found_in_order(photos, tmp_path, monkeypatch):
    every = all_photos(photos)
    assert list(find_photos([str(photos)])) == every
    assert list(find_photos([f"{photos}/**/*.png"])) == every
    assert list(find_photos([f"{photos}/1/*", every[0]])) == [*sorted(map(str, photos.glob("1/*"))), every[0]]
    odd = photos / "odd[1].png"  # a file whose name looks like a pattern
    odd.write_bytes(b"")
    assert list(find_photos([str(odd), "gone.jpg"])) == [str(odd), "gone.jpg"]
    lines = tmp_path / "list.txt"
    lines.write_bytes("\ufeffa b.jpg\r\n\n  \né.jpg".encode())
    assert list(read_list(str(lines))) == ["a b.jpg", "é.jpg"]
    monkeypatch.setattr("sys.stdin", io.StringIO("x.jpg\n"))
    assert list(read_list("-")) == ["x.jpg"]
    for empty in (tmp_path / "empty", f"{tmp_path}/*.gif"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(ValueError, match=r"There is no photo in .*: give files, folders"):
            list(find_photos([str(empty)]))


def test_photos_with_a_line_break_in_their_name_are_found(tmp_path):
    (tmp_path / "a\nb.png").write_bytes(b"")
    assert list(find_photos([str(tmp_path)])) == [f"{tmp_path}/a\nb.png"]


def test_links_to_folders_are_followed_once_and_those_that_lead_nowhere_are_photos(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.png").write_bytes(b"")
    root = tmp_path / "photos"
    (root / "inner").mkdir(parents=True)
    (root / "inner" / "back").symlink_to(root)
    (root / "linked").symlink_to(tmp_path / "other")
    (root / "gone.png").symlink_to(tmp_path / "nowhere.png")
    assert list(find_photos([str(root)])) == [f"{root}/gone.png", f"{root}/linked/b.png"]


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_standard_input_is_read_once_whatever_files_there_are(run, photos, tmp_path, monkeypatch, bom):
    every = all_photos(photos)
    monkeypatch.chdir(tmp_path)
    Path("-").touch()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(bom + "\n".join(every).encode())))
    assert main(["predict", str(run), "--from", "-", "--out", "out.csv"]) == 0
    assert list(rows_of(Path("out.csv"))) == every


@pytest.mark.parametrize(("name", "workers"), [("out.csv", 2), ("out.jsonl", 0)])
def test_a_broken_photo_is_skipped_and_named_and_all_others_are_written_once(
    run, photos, tmp_path, capsys, name, workers
):
    every = all_photos(photos)
    Path(every[BROKEN]).write_bytes(b"this is no image")
    os.mkfifo(photos / "pipe.png")
    out = tmp_path / name
    options = ["--batch-size", "4", "--workers", str(workers), "--out", str(out)]
    given = [str(photos), every[0], str(photos / "pipe.png")]
    assert main(["predict", str(run), *given, *options]) == UNREADABLE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "2 photos could not be read and had to be skipped:\n" in printed.err
    assert f"{every[BROKEN]} is not an image that can be read" in printed.err
    assert f"{photos / 'pipe.png'} is not an image file" in printed.err
    assert_same_rows(rows_of(out), expected_rows(run, every[:BROKEN] + every[BROKEN + 1 :]))
    assert sorted(os.listdir(tmp_path)) == [name, "photos"]  # and no lock


@pytest.mark.parametrize("workers", [0, 1])
def test_photos_too_small_for_the_network_do_not_end_the_others(run, photos, tmp_path, capsys, workers):
    every = all_photos(photos)
    tiny = [str(photos / "0" / f"tiny{k}.png") for k in range(2)]
    for path in tiny:
        Image.new("RGB", (2, 2)).save(path)
    out = tmp_path / "out.csv"
    options = ["--batch-size", "5", "--workers", str(workers), "--out", str(out)]
    assert main(["predict", str(run), str(photos), *options]) == UNREADABLE
    text = capsys.readouterr().err
    assert "2 photos could not be read and had to be skipped:\n" in text
    for path in tiny:
        assert f"{path} cannot be used by this model (" in text
    assert_same_rows(rows_of(out), expected_rows(run, every))


def test_json_of_several_batches_is_one_list_and_a_table_has_a_line_per_photo(run, photos, capsys):
    every = all_photos(photos)
    expected = expected_rows(run, every)
    assert main(["predict", str(run), str(photos), "--json", "--batch-size", "5"]) == 0
    rows = json.loads(capsys.readouterr().out)
    found = {row["image"]: list(row["probabilities"].values()) for row in rows}
    assert_same_rows(found, expected)
    assert main(["predict", str(run), str(photos), "--batch-size", "5"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == every
    Path(every[0]).write_bytes(b"")
    assert main(["predict", str(run), every[0], "--json"]) == UNREADABLE
    assert json.loads(capsys.readouterr().out) == []


def test_killed_while_predicting_and_resumed_everything_is_written_once(run, photos, tmp_path):
    every = all_photos(photos)
    out = tmp_path / "out.csv"
    command = [sys.executable, "-m", "avalanche_agcn", "predict", str(run), "--from", "-"]
    options = ["--out", str(out), "--batch-size", "2", "--workers", "1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen([*command, *options], stdin=subprocess.PIPE, env=environment)
    process.stdin.write("".join(f"{photo}\n" for photo in every[:-2]).encode())
    process.stdin.flush()  # it stays open: the process waits for more
    while not out.exists() or out.read_text().count("\n") < 4:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    n_written = len(rows_of(out))
    assert 3 <= n_written < len(every)
    arguments = ["predict", str(run), str(photos), "--out", str(out)]
    assert main(arguments) == 1
    assert len(rows_of(out)) == n_written
    assert main([*arguments, "--resume"]) == 0
    assert_same_rows(rows_of(out), expected_rows(run, every))
    content = out.read_bytes()
    assert main([*arguments, "--resume"]) == 0
    assert out.read_bytes() == content


class FixedModel:
    """Class names, and the probabilities of any photo."""

    class_names = NAMES

    def predict(self, photo):
        return [self.choose([0.25] * len(NAMES))]

    def choose(self, row, *, threshold=None, top=None):
        return Prediction([], dict(zip(NAMES, row, strict=True)))


ODD_NAMES = ["a.jpg", "=b.jpg", 'say "c", d.jpg', "two\nlines\r.jpg", "é\udcff.jpg", "'=b.jpg", " e.jpg"]
ODD_NAMES += [r"two\nlines\r.jpg", r"é\udcff.jpg", "''=b.jpg", "C:\\a.jpg"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_file_cut_anywhere_is_completed_with_each_photo_once(tmp_path, suffix):
    found = [(photo, FixedModel().predict(photo)[0]) for photo in ODD_NAMES]
    path = tmp_path / f"out{suffix}"

    def write_missing():
        with OutputFile(path, resume=True) as output:
            output.begin(FixedModel())
            for pair in found + found:
                if output.lacks(pair[0]):
                    output.write([pair])

    write_missing()
    whole = path.read_bytes()
    assert len(rows_of(path)) == len(ODD_NAMES)
    for n_bytes in range(len(whole)):
        path.write_bytes(whole[:n_bytes])
        write_missing()
        assert path.read_bytes() == whole


def test_a_file_that_cannot_be_continued_is_left_unchanged(run, photos, tmp_path, capsys):
    every = all_photos(photos)
    out = tmp_path / "out.csv"
    arguments = ["predict", str(run), every[0], "--out", str(out), "--resume"]
    assert main(arguments) == 0
    whole = out.read_text()
    changes = {
        "has predictions of another model": whole.replace(",0.", ",0.9"),
        "line 1, has other classes than the model": whole.replace("dog", "cow"),
        "line 3, is not a line of predictions": whole + "x\n",
    }
    for message, text in changes.items():
        out.write_text(text)
        assert main(arguments) == 1
        assert message in capsys.readouterr().err
        assert out.read_text() == text
    out.write_text(whole)
    with OutputFile(out, resume=True):
        assert main(arguments) == 1
    assert "is being written by another process" in capsys.readouterr().err
    assert main([*arguments[:-1], every[1]]) == 1  # an option between photos
    assert "exists: give --resume to add the photos that it lacks" in capsys.readouterr().err
    assert main(["predict", str(run), every[0], "--out", "labels.txt"]) == 1
    assert "--out must end in .csv or .jsonl, not 'labels.txt'" in capsys.readouterr().err
    assert out.read_text() == whole


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"image": "a.png", "labels": [], "probabilities": {"NAME": 1%s}}' % ("0" * 400),
        '{"image": "a.png", "probabilities": {"NAME": 0.5}}',
    ],
)
def test_lines_that_are_none_of_predictions_end_in_a_sentence(run, photos, tmp_path, capsys, line):
    out = tmp_path / "out.jsonl"
    out.write_text(line + "\n")
    assert main(["predict", str(run), all_photos(photos)[0], "--out", str(out), "--resume"]) == 1
    assert "line 1, is not a line of predictions" in capsys.readouterr().err


def test_probabilities_that_are_no_numbers_are_those_of_another_model(run, photos, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    arguments = ["predict", str(run), all_photos(photos)[0], "--out", str(out), "--resume"]
    assert main(arguments) == 0
    (row,) = map(json.loads, out.read_text().splitlines())
    row["probabilities"] = dict.fromkeys(row["probabilities"], math.nan)
    out.write_text(json.dumps(row) + "\n")
    assert main(arguments) == 1
    assert "has predictions of another model" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl"])
def test_a_file_has_labels_by_one_rule(run, photos, tmp_path, capsys, name):
    first, second = all_photos(photos)[:2]
    begin, resume = ["predict", str(run), first, "--out", str(tmp_path / name)], ["--resume"]
    assert main([*begin, "--threshold", "0"]) == 0
    whole = (tmp_path / name).read_text()
    for other in ([], ["--threshold", "1"], ["--top", "1"]):
        assert main([*begin, second, *resume, *other]) == 1
        assert "Give the same --threshold and --top, or write to another file." in capsys.readouterr().err
        assert (tmp_path / name).read_text() == whole
    assert main([*begin, second, *resume, "--threshold", "0"]) == 0
    assert len(rows_of(tmp_path / name)) == 2


@pytest.mark.parametrize("options", [[], ["--resume"]])
def test_predictions_are_not_added_to_what_is_no_regular_file(run, photos, tmp_path, capsys, options):
    os.mkfifo(tmp_path / "out.csv")
    (tmp_path / "out.jsonl").mkdir()
    for name in ("out.csv", "out.jsonl"):
        assert (
            main(["predict", str(run), all_photos(photos)[0], "--out", str(tmp_path / name), *options]) == 1
        )
        assert f"{tmp_path / name} is not a regular file: choose another file." in capsys.readouterr().err


LITTLE_SPACE = """
import resource, signal, sys
from avalanche_agcn.__main__ import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # files cannot grow, as on a full disk
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk_is_reported_with_the_file_of_predictions(run, photos, tmp_path):
    out = tmp_path / "out.csv"
    command = [sys.executable, "-c", LITTLE_SPACE, "predict", str(run), str(photos), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"File too large: '{out}'" in done.stderr
    assert "Traceback" not in done.stderr


def predict_in_shell(arguments, run, photo, **environment):
    """Exit code of `predict`, printed by the shell, with what follows it, such as a pipe."""
    command = f'"{sys.executable}" -m avalanche_agcn predict "{run}" {arguments}'
    variables = {**os.environ, "PHOTO": str(photo), **environment}
    return subprocess.run(["bash", "-c", command], env=variables, capture_output=True, timeout=120)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_closed_pipes_and_streams_end_quietly_or_in_a_sentence(run, photos):
    every = all_photos(photos)
    done = predict_in_shell('"$PHOTO" | true; exit "${PIPESTATUS[0]}"', run, photos)
    assert (done.returncode, done.stdout, done.stderr) == (141, b"", b"")
    done = predict_in_shell('"$PHOTO" >&-', run, every[0])
    assert done.returncode == 1
    assert done.stderr.endswith(b"Stopped: Standard output is closed: write the labels to a file by --out.\n")
    done = predict_in_shell("--from - <&-", run, every[0])
    assert done.returncode == 1
    assert done.stderr.endswith(b"Stopped: Standard input is closed: give a file with the list of photos.\n")
    done = predict_in_shell('"$PHOTO" 2>&-', run, every[0])
    assert done.returncode == 0
    assert done.stdout.startswith(os.fsencode(every[0]))


@pytest.mark.parametrize("options", [[], ["--threshold", "2"], ["--top", "0"]])
def test_nothing_is_printed_if_nothing_can_be_predicted(run, photos, tmp_path, capsys, options):
    if not options:
        model = MultiLabelClassifier(create_backbone("small", pretrained=True), 3)
        save_model(model, tmp_path / "run", class_names=NAMES)
        run = tmp_path / "run"
    assert main(["predict", str(run), str(photos), "--json", *options]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("Stopped: ")


@pytest.mark.parametrize("form", ["--json", "--jsonl"])
def test_json_is_valid_in_any_encoding_of_the_output(tmp_path, photos, form):
    names = ["é", "😀", "\\x41"]
    model = MultiLabelClassifier(create_backbone("small", pretrained=True), 3)
    save_model(model, tmp_path / "run", class_names=names, transform=v2.Compose(TO_FLOAT))
    arguments = f'"$PHOTO" {form}'
    for encoding in ("ascii", "latin-1", "utf-8"):
        photo = all_photos(photos)[0]
        done = predict_in_shell(arguments, tmp_path / "run", photo, PYTHONIOENCODING=encoding)
        content = json.loads(done.stdout.decode(encoding))
        row = content[0] if form == "--json" else content
        assert list(row["probabilities"]) == names


def test_a_list_from_a_named_pipe_is_read_once(run, photos, tmp_path, capsys):
    every = all_photos(photos)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("\n".join(every),), daemon=True)
    writer.start()
    assert main(["predict", str(run), "--from", str(pipe), "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(every)


def test_another_model_is_noticed_behind_an_escaped_path(run, photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    every = all_photos(photos)
    shutil.copy(every[0], "-a.png")
    Path("list.txt").write_text(f"-a.png\n{every[1]}\n")
    arguments = ["predict", str(run), "--from", "list.txt", "--out", "out.csv", "--resume"]
    assert main(arguments) == 0
    text = Path("out.csv").read_text()
    Path("out.csv").write_text(text.replace(",0.", ",0.9"))
    assert main(arguments) == 1
    assert "has predictions of another model" in capsys.readouterr().err
    Path("out.jsonl").write_text('{"image": 5, "labels": [], "probabilities": {}}\n')
    assert main(["predict", str(run), every[0], "--out", "out.jsonl", "--resume"]) == 1
    assert "line 1, is not a line of predictions" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nothing to predict: give photos, folders, or a list with --from"),
        (["a.jpg", "--resume"], "--resume adds to the file of --out: give one"),
        (["a.jpg", "--batch-size", "0"], "--batch-size must be at least 1"),
        (["a.jpg", "--csv", "--out", "a.csv"], "not allowed with argument"),
    ],
)
def test_options_that_do_not_fit_are_named(capsys, arguments, message):
    assert main(["predict", "RUN", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("workers", [0, 1])
def test_paths_are_taken_only_as_they_are_needed(run, photos, workers):
    taken = []

    def endless():
        for k in count():
            taken.append(k)
            yield str(photos / "0" / "00.png")

    batches = predict_files(load_model(run), endless(), batch_size=2, num_workers=workers)
    for _ in range(3):
        found, _ = next(batches)
        assert len(found) == 2
    ahead = 2 * workers  # batches that torch loads in advance
    assert len(taken) <= 2 * (3 + ahead + 1)


@pytest.mark.parametrize("sign", ["=", "+", "-", "@"])
def test_cells_of_a_csv_that_spreadsheets_would_compute_begin_with_a_quote(sign):
    name = f"{sign}1+1"
    text = format_begin("csv", [name, "b=1"])
    text += format_rows("csv", [(f"{name}.jpg", Prediction([name], {name: 0.5, "b=1": 0.25}))])
    assert text == f"image,labels,'{name},b=1\n'{name}.jpg,'{name},0.5,0.25\n"


def test_files_have_the_digits_of_float32():
    found = [("a.jpg", Prediction(["a"], {"a": 0.12345679104328156, "b": 1.2345678889e-9}))]
    assert format_rows("csv", found) == "a.jpg,a,0.1234568,1.234568e-09\n"
    assert json.loads(format_rows("jsonl", found))["probabilities"] == {"a": 0.1234568, "b": 1.234568e-09}
