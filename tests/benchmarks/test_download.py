"""Downloads from a real server on this machine. The official sites are not contacted."""

import hashlib
import http.server
import io
import json
import re
import tarfile
import threading
import time
import zipfile
from dataclasses import replace

import pytest
from PIL import Image

from avalanche_agcn.benchmarks import SplitCOCO, SplitVOC, download, download_coco, download_voc
from avalanche_agcn.benchmarks.download import COCO_2014, VOC_2007, Archive, download_archives


class Server(http.server.ThreadingHTTPServer):
    """Serves files from memory: with Range or without, with connections that break, and with errors."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.ranges = True
        self.cuts = []  # bytes after which the next connections break; None: not at all
        self.errors = []  # status codes of the next answers
        self.announces_length = True
        self.seconds = 0.0  # before an answer
        self.requests = []  # names, and first bytes asked for

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        pass  # the client may close the connection


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server, name = self.server, self.path.rpartition("/")[2]
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        server.requests.append((name, start))
        time.sleep(server.seconds)
        if server.errors:
            self.send_error(server.errors.pop(0))
            return
        if name not in server.files:
            self.send_error(404)
            return
        content = server.files[name]
        if asked and server.ranges:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            start = 0
            self.send_response(200)
        if server.announces_length:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else None
        self.wfile.write(content[start:] if cut is None else content[start : start + cut])

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "RETRY_SECONDS", (0.0, 0.0))
    with Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def zip_of(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, data in files.items():
            file.writestr(name, data)
    return content.getvalue()


def tar_of(files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as file:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            if data.startswith(b"link to "):
                member.type, member.linkname = tarfile.SYMTYPE, data.removeprefix(b"link to ").decode()
            else:
                member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return content.getvalue()


def publish(server, name, contents, **values):
    """Serve an archive of the files, and describe it."""
    content = (zip_of if name.endswith(".zip") else tar_of)(contents)
    server.files[name] = content
    described = {
        "url": f"{server.url}/official/{name}",
        "md5": hashlib.md5(content).hexdigest(),
        "n_bytes": len(content),
        "unpacked_bytes": sum(map(len, contents.values())),
        "files": "*/*",
        "n_files": len(contents),
    }
    return Archive(**{**described, **values})


def files_in(root):
    """All files below a folder, with their content; but not the lock, which stays."""
    found = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name != ".download.lock"}


PHOTOS = {f"photos/{k}.jpg": bytes([k]) * 3000 for k in range(10)}
LABELS = {"labels/a.json": b"[1]" * 500, "labels/b.json": b"[2]"}


@pytest.fixture(params=["photos.zip", "photos.tar"])
def archive(server, request):
    return publish(server, request.param, PHOTOS)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "new" / "data"


def test_archives_are_downloaded_unpacked_and_deleted(server, root, capsys):
    archives = [
        publish(server, "photos.zip", PHOTOS),
        publish(server, "labels.tar", LABELS, files="labels/*"),
    ]
    archives[0] = replace(archives[0], files="photos/*")
    download_archives(archives, root)
    assert files_in(root) == PHOTOS | LABELS
    assert server.requests == [("photos.zip", 0), ("labels.tar", 0)]
    printed = capsys.readouterr().out
    assert re.search(r"photos.zip: 100%.*unpack photos.zip: 100%.*10/10", printed, flags=re.DOTALL)

    download_archives(archives, root)  # there is nothing left to do
    assert len(server.requests) == 2
    assert capsys.readouterr().out == ""

    (root / "labels" / "a.json").unlink()
    (root / "labels" / "b.json").unlink()
    download_archives(archives, root)
    assert files_in(root) == PHOTOS | LABELS
    assert server.requests[2:] == [("labels.tar", 0)]


def test_a_broken_connection_is_continued_where_it_broke(server, archive, root):
    server.cuts = [1000, 0, 500]
    download_archives([archive], root)
    assert files_in(root) == PHOTOS
    assert [start for _, start in server.requests] == [0, 1000, 1000, 1500]


def test_the_next_download_continues_what_is_left_of_the_last(server, archive, root):
    server.cuts = [1000, 0, 0, 0]
    with pytest.raises(OSError, match=rf"{archive.url} .*1,000 bytes of {archive.n_bytes:,} bytes are there"):
        download_archives([archive], root)
    assert len((root / f"{archive.name}.download").read_bytes()) == 1000
    assert len(server.requests) == 4  # two that received nothing were tried again

    download_archives([archive], root)
    assert files_in(root) == PHOTOS
    assert server.requests[-1] == (archive.name, 1000)


def test_a_server_without_ranges_sends_everything_again(server, archive, root):
    server.ranges = False
    server.cuts = [1000]
    download_archives([archive], root)
    assert files_in(root) == PHOTOS
    assert [start for _, start in server.requests] == [0, 1000]

    server.cuts = [1000] * 10  # it never gets further
    with pytest.raises(OSError, match="the connection was closed"):
        download_archives([archive], root / "other")


def test_a_server_that_announces_no_length_may_break_too(server, archive, root):
    server.announces_length = False
    server.cuts = [1000]
    download_archives([archive], root)
    assert files_in(root) == PHOTOS
    assert [start for _, start in server.requests] == [0, 1000]


def test_a_file_with_another_checksum_is_deleted(server, archive, root):
    damaged = bytearray(server.files[archive.name])
    damaged[700] ^= 1
    official = server.files[archive.name]
    server.files[archive.name] = bytes(damaged)
    with pytest.raises(ValueError, match=rf"^{archive.name} from {archive.url} .*{archive.md5}"):
        download_archives([archive], root)
    assert files_in(root) == {}
    server.files[archive.name] = official
    download_archives([archive], root)
    assert files_in(root) == PHOTOS


def test_a_file_of_another_size_is_not_downloaded(server, archive, root):
    wanted = replace(archive, n_bytes=archive.n_bytes + 1)
    with pytest.raises(ValueError, match=rf"has {archive.n_bytes:,} bytes, not {wanted.n_bytes:,}"):
        download_archives([wanted], root)
    assert files_in(root) == {}


def test_an_absent_file_is_named_and_not_asked_for_again(server, archive, root):
    absent = replace(archive, url=f"{server.url}/photos-2.zip")
    with pytest.raises(OSError, match=rf"{absent.url} cannot be downloaded \(404 Not Found\)"):
        download_archives([absent], root)
    assert server.requests == [("photos-2.zip", 0)]


def test_a_busy_server_is_asked_again(server, archive, root):
    server.errors = [503, 500]
    download_archives([archive], root)
    assert files_in(root) == PHOTOS
    server.errors = [503] * 10
    with pytest.raises(OSError, match=r"\(503 Service Unavailable\): 0 bytes of"):
        download_archives([archive], root / "other")


def test_a_site_that_cannot_be_reached_is_named(server, archive, root):
    closed = replace(archive, url="http://127.0.0.1:9/photos.zip")  # nothing listens there
    with pytest.raises(OSError, match=rf"{closed.url} cannot be downloaded \(.*refused"):
        download_archives([closed], root)


def test_nothing_is_downloaded_without_room_for_all_of_it(server, root):
    big = publish(server, "photos.zip", PHOTOS, files="photos/*", unpacked_bytes=50_000)
    small = publish(server, "labels.tar", LABELS, files="labels/*", unpacked_bytes=40_000)
    needed = max(big.n_bytes + 50_000, 50_000 + small.n_bytes + 40_000)
    text = (
        rf"{root} has room for {needed - 1:,} bytes, but {needed:,} bytes are needed.*photos.zip, labels.tar"
    )
    with pytest.raises(OSError, match=text):
        download_archives([big, small], root, free_bytes=needed - 1)
    assert server.requests == []
    assert files_in(root) == {}
    download_archives([big, small], root, free_bytes=needed)

    (root / "labels" / "a.json").unlink()
    (root / "labels" / "b.json").unlink()
    download_archives([big, small], root, free_bytes=small.n_bytes + 40_000)  # of what is missing alone
    huge = replace(big, unpacked_bytes=10**18)
    with pytest.raises(OSError, match=r"but 1,000,000,000.0 GB are needed"):  # the real disk
        download_archives([huge], root / "other")


def test_bytes_that_are_there_need_no_further_room(server, archive, root):
    server.cuts = [1000, 0, 0, 0]
    with pytest.raises(OSError, match="1,000 bytes"):
        download_archives([archive], root)
    needed = archive.n_bytes + archive.unpacked_bytes - 1000
    with pytest.raises(OSError, match="has room for"):
        download_archives([archive], root, free_bytes=needed - 1)
    download_archives([archive], root, free_bytes=needed)
    assert files_in(root) == PHOTOS


def test_an_interrupted_unpacking_is_repeated_without_another_download(server, archive, root):
    obstacle = root / "photos" / "7.jpg"
    obstacle.mkdir(parents=True)
    with pytest.raises(OSError, match=r"7\.jpg"):
        download_archives([replace(archive, files="photos/0.jpg")], root)  # the obstacle is no file of it
    assert (root / "photos" / "3.jpg").is_file()
    (root / "photos" / "3.jpg").write_bytes(b"half")
    obstacle.rmdir()
    for k in (7, 8, 9):  # as many files as there should be, but not these
        (root / f"photos/{k}.jpg").write_bytes(b"")

    download_archives([archive], root)
    assert files_in(root) == PHOTOS
    assert server.requests == [(archive.name, 0)]


def test_files_of_the_user_are_not_replaced(server, archive, root):
    mine = root / "photos" / "0.jpg"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=rf"{mine.parent} has 1 of the 10 files of {archive.name}"):
        download_archives([archive], root)
    assert files_in(root) == {"photos/0.jpg": b"mine"}
    assert server.requests == []


def test_an_archive_of_the_user_is_used_and_kept(server, archive, root):
    root.mkdir(parents=True)
    mine = root / archive.name
    mine.write_bytes(b"something else")
    with pytest.raises(ValueError, match=rf"{mine} is not the official file"):
        download_archives([archive], root)
    assert mine.read_bytes() == b"something else"
    mine.write_bytes(server.files[archive.name])
    download_archives([archive], root, free_bytes=archive.unpacked_bytes)
    assert files_in(root) == PHOTOS | {archive.name: server.files[archive.name]}
    assert server.requests == []


OUTSIDE = ["../out.jpg", "photos/../../out.jpg", "/out.jpg", "C:/out.jpg", "photos\\..\\..\\out.jpg"]


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_names_that_lead_out_of_the_folder_are_rejected(server, root, kind, name):
    archive = publish(server, f"photos.{kind}", {**PHOTOS, name: b"x"})
    with pytest.raises(ValueError, match=rf"photos.{kind}: a name must be a file within"):
        download_archives([archive], root)
    assert set(files_in(root.parent.parent)) <= {
        f"new/data/photos.{kind}.download",
        "new/data/.download.lock",
    }


@pytest.mark.parametrize("target", ["..", "/"])
def test_links_that_lead_out_of_the_folder_are_rejected(server, root, target):
    archive = publish(server, "photos.tar", {"out": b"link to " + target.encode(), "out/x.jpg": b"x"})
    with pytest.raises(ValueError, match=r"photos\.tar must not be unpacked"):
        download_archives([archive], root)
    assert set(files_in(root)) == {"photos.tar.download"}


def test_several_processes_download_once(server, archive, root):
    server.seconds = 0.5  # time for all to begin
    threads = [threading.Thread(target=download_archives, args=([archive], root)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert files_in(root) == PHOTOS
    assert server.requests == [(archive.name, 0)]


def jpeg(shade):
    content = io.BytesIO()
    Image.new("RGB", (20, 10), (shade, 0, 0)).save(content, "jpeg")
    return content.getvalue()


def coco_files():
    """The files of each of COCO's archives, with two categories."""
    files = {}
    for subset, numbers in (("train", (1, 2, 3)), ("val", (4, 5))):
        names = {number: f"COCO_{subset}2014_{number:012}.jpg" for number in numbers}
        files[f"{subset}2014.zip"] = {f"{subset}2014/{name}": jpeg(n * 10) for n, name in names.items()}
        content = {
            "images": [{"id": number, "file_name": name} for number, name in names.items()],
            "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
            "annotations": [{"id": n, "image_id": n, "category_id": n % 2 + 1} for n in numbers],
        }
        labels = files.setdefault("annotations_trainval2014.zip", {})
        labels[f"annotations/instances_{subset}2014.json"] = json.dumps(content).encode()
        labels[f"annotations/captions_{subset}2014.json"] = b"{}"
    return files


def test_coco_is_laid_out_as_its_benchmark_reads_it(server, root, monkeypatch):
    files = coco_files()
    counts = {"train2014.zip": 3, "val2014.zip": 2, "annotations_trainval2014.zip": 2}
    archives = []
    for real in COCO_2014:  # with the names and patterns of the real ones
        served = publish(server, real.name, files[real.name])
        archives.append(replace(served, files=real.files, n_files=counts[real.name]))
    monkeypatch.setattr(download, "COCO_2014", archives)
    download_coco(root)
    download_coco(root)
    assert len(server.requests) == 3
    benchmark = SplitCOCO(root, n_classes=2, n_experiences=1, image_size=32)
    assert benchmark.class_names == ["cat", "dog"]
    assert [len(stream[0].dataset) for stream in benchmark.streams.values()] == [3, 2]
    assert benchmark.train_stream[0].dataset[0][0].shape == (3, 32, 32)


CLASSES = ("aeroplane", "bicycle")


def voc_files(subset, images):
    release = "VOCdevkit/VOC2007"
    files = {f"{release}/ImageSets/Main/{subset}.txt": "".join(f"{n:06}\n" for n in images).encode()}
    for n in images:
        box = f"<object><name>{CLASSES[n % 2]}</name><difficult>0</difficult></object>"
        files[f"{release}/Annotations/{n:06}.xml"] = f"<annotation>{box}</annotation>".encode()
        files[f"{release}/JPEGImages/{n:06}.jpg"] = jpeg(n * 10)
    return files


def test_voc_is_laid_out_as_its_benchmark_reads_it(server, root, monkeypatch):
    sets = {"trainval": (1, 4, 6), "test": (2, 3)}
    archives = []
    for real, (subset, images) in zip(VOC_2007, sets.items()):
        served = publish(server, real.name, voc_files(subset, images))
        archives.append(replace(served, files=real.files, n_files=len(images), listed_in=real.listed_in))
    monkeypatch.setattr(download, "VOC_2007", archives)
    server.errors = [404]
    with pytest.raises(OSError, match=r"VOCtrainval_06-Nov-2007\.tar"):
        download_voc(root)
    download_archives(archives[:1], root)
    download_voc(root)  # the photos of the first archive are in the folder of the second
    assert [name for name, _ in server.requests[1:]] == [real.name for real in VOC_2007]
    benchmark = SplitVOC(root, classes_per_experience=[2], class_order=list(CLASSES), image_size=32)
    assert [len(stream[0].dataset) for stream in benchmark.streams.values()] == [3, 2]


def test_official_archives_are_described_as_their_sources_do():
    archives = {archive.name: archive for archive in (*COCO_2014, *VOC_2007)}
    assert {name: archive.n_files for name, archive in archives.items()} == {
        "train2014.zip": 82_783,
        "val2014.zip": 40_504,
        "annotations_trainval2014.zip": 2,
        "VOCtrainval_06-Nov-2007.tar": 5_011,
        "VOCtest_06-Nov-2007.tar": 4_952,
    }
    from torchvision.datasets.voc import DATASET_YEAR_DICT

    for key, name in (("2007", "VOCtrainval_06-Nov-2007.tar"), ("2007-test", "VOCtest_06-Nov-2007.tar")):
        assert archives[name].md5 == DATASET_YEAR_DICT[key]["md5"]
        assert archives[name].url.rpartition("/")[2] == DATASET_YEAR_DICT[key]["filename"]
    assert all(re.fullmatch("[0-9a-f]{32}", archive.md5) for archive in archives.values())
