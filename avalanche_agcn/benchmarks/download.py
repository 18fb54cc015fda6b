"""Downloads COCO 2014 and PASCAL VOC 2007 from their official sites, as `SplitCOCO` and `SplitVOC` read them.

A downloaded archive is named ``train2014.zip.download`` until it is unpacked; then it is deleted. If the
connection breaks or the process ends, the next call continues with the bytes that are there. While an
archive is being unpacked, there is a file ``.train2014.zip.unpacking``: if the process ends, the next call
unpacks the archive again. An archive without ``.download`` is the user's: it is used if its checksum is
right, and is never changed.
"""

from __future__ import annotations

import http.client
import os
import shutil
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from torchvision.datasets.utils import check_integrity
from tqdm import tqdm

from avalanche_agcn.benchmarks.image_files import check_inside
from avalanche_agcn.checks import naming_file

CHUNK_BYTES = 2**20
TIMEOUT_SECONDS = 60
RETRY_SECONDS = (1.0, 4.0, 15.0)
"""Waits between attempts that received nothing; after the last one the download fails."""
TEMPORARY_ERRORS = (408, 429, 500, 502, 503, 504)
"""HTTP status codes after which another attempt may succeed."""


@dataclass(frozen=True)
class Archive:
    """An archive to download, and what it contains.

    Attributes:
        url: its address.
        md5: its checksum.
        n_bytes: its size.
        unpacked_bytes: the size of its files; an upper estimate is enough.
        files: pattern of those of its files that a benchmark needs, relative to the data set's folder.
        n_files: their number.
        listed_in: an image set with the stems of these files, if the pattern alone would also find others.
    """

    url: str
    md5: str
    n_bytes: int
    unpacked_bytes: int
    files: str
    n_files: int
    listed_in: str | None = None

    @property
    def name(self) -> str:
        """Its file name."""
        return self.url.rpartition("/")[2]

    def marker(self, root: Path) -> Path:
        """The file that is there while the archive is unpacked."""
        return root / f".{self.name}.unpacking"

    def unfinished(self, root: Path) -> Path:
        """Where the archive is until it is unpacked."""
        return root / f"{self.name}.download"

    def find(self, root: Path) -> list[Path]:
        """Those of its `files` that are there."""
        found = list(root.glob(self.files))
        if self.listed_in is None:
            return found
        image_set = root / self.listed_in
        stems = set(image_set.read_text(encoding="utf-8").split()) if image_set.is_file() else set()
        return [path for path in found if path.stem in stems]

    def is_complete(self, root: Path) -> bool:
        """Whether all its files are there."""
        return not self.marker(root).exists() and len(self.find(root)) == self.n_files


# Where these values come from:
# MD5 checksums of COCO: github.com/twsl/pytorchcocotools, utils/coco/files.py; those of the photos are also
# in github.com/salesforce/LAVIS, download_scripts/download_coco.py.
# MD5 checksums and addresses of VOC: torchvision.datasets.voc. They replace those on host.robots.ox.ac.uk.
# Sizes of archives: github.com/tensorflow/datasets, url_checksums/coco2014.txt and voc2007.txt.
# Unpacked sizes: estimates. JPEG files hardly compress, but fill whole blocks of the disk, so 2 % above the
# archive; the JSON files have 844,813,048 bytes.
_COCO = "http://images.cocodataset.org"  # over HTTPS it has a certificate of another name
COCO_2014 = (  # the largest first, which needs the least room
    Archive(
        url=f"{_COCO}/zips/train2014.zip",
        md5="0da8c0bd3d6becc4dcb32757491aca88",
        n_bytes=13_510_573_713,
        unpacked_bytes=13_800_000_000,
        files="train2014/COCO_train2014_*.jpg",
        n_files=82_783,
    ),
    Archive(
        url=f"{_COCO}/zips/val2014.zip",
        md5="a3d79f5ed8d289b7a7554ce06a5782b3",
        n_bytes=6_645_013_297,
        unpacked_bytes=6_800_000_000,
        files="val2014/COCO_val2014_*.jpg",
        n_files=40_504,
    ),
    Archive(
        url=f"{_COCO}/annotations/annotations_trainval2014.zip",
        md5="0a379cfc70b0e71301e0f377548639bd",
        n_bytes=252_872_794,
        unpacked_bytes=845_000_000,  # with captions and key points
        files="annotations/instances_*2014.json",
        n_files=2,
    ),
)
_VOC = "https://thor.robots.ox.ac.uk/pascal/VOC/voc2007"
VOC_2007 = (
    Archive(
        url=f"{_VOC}/VOCtrainval_06-Nov-2007.tar",
        md5="c52e279531787c972589f7e41ab4ae64",
        n_bytes=460_032_000,
        unpacked_bytes=460_032_000,
        files="VOCdevkit/VOC2007/JPEGImages/*.jpg",
        n_files=5_011,
        listed_in="VOCdevkit/VOC2007/ImageSets/Main/trainval.txt",
    ),
    Archive(
        url=f"{_VOC}/VOCtest_06-Nov-2007.tar",
        md5="b6e924de25625d8de591ea690078ad9f",
        n_bytes=451_020_800,
        unpacked_bytes=451_020_800,
        files="VOCdevkit/VOC2007/JPEGImages/*.jpg",
        n_files=4_952,
        listed_in="VOCdevkit/VOC2007/ImageSets/Main/test.txt",
    ),
)


def download_coco(root: str | os.PathLike) -> None:
    """Download what is missing of COCO 2014 (20.4 GB), for `SplitCOCO`.

    ``root`` then has ``annotations``, ``train2014`` and ``val2014``. What is complete there is not downloaded
    again, and an interrupted download is continued.

    Args:
        root: folder of the data set; it is created if there is none.

    Raises:
        OSError: if the disk has too little room, before anything is downloaded; if the site cannot be
            reached; if some files of an archive are there, but not all.
        ValueError: if an archive has another checksum; it is deleted.
    """
    download_archives(COCO_2014, root)


def download_voc(root: str | os.PathLike) -> None:
    """Download what is missing of PASCAL VOC 2007 (0.9 GB), for `SplitVOC`.

    ``root`` then has ``VOCdevkit/VOC2007``. Everything else is as in `download_coco`.
    """
    download_archives(VOC_2007, root)


def download_archives(
    archives: Sequence[Archive], root: str | os.PathLike, *, free_bytes: int | None = None
) -> None:
    """Download and unpack the archives whose files are not in a folder.

    Several processes may call this at once: one works, and the others wait for it.

    Args:
        archives: the archives, in the order in which they are downloaded.
        root: folder to unpack them in.
        free_bytes: room on the disk; by default what the system says.
    """
    root = Path(root)
    if all(archive.is_complete(root) and not archive.unfinished(root).exists() for archive in archives):
        return  # without a lock, as others may own the folder
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / ".download.lock"):
        missing = [archive for archive in archives if not archive.is_complete(root)]
        for archive in missing:
            _check_files_are_ours(archive, root)
        _check_room(missing, root, shutil.disk_usage(root).free if free_bytes is None else free_bytes)
        for archive in archives:
            if archive in missing:
                _unpack(archive, _fetch_archive(archive, root), root)
            archive.unfinished(root).unlink(missing_ok=True)


def _check_files_are_ours(archive: Archive, root: Path) -> None:
    """Raise a FileExistsError if some of the archive's files are there, but not from unpacking it here."""
    found = archive.find(root)
    if found and not archive.marker(root).exists():
        raise FileExistsError(
            f"{found[0].parent} has {len(found):,} of the {archive.n_files:,} files of {archive.name}, and a "
            "download replaces no files: move them away, or use the folder without downloading."
        )


def _check_room(missing: Sequence[Archive], root: Path, free: int) -> None:
    """Raise an OSError if the disk has too little room; each archive is deleted before the next download."""
    used = needed = 0
    for archive in missing:
        in_download = _size(archive.unfinished(root))
        to_download = 0 if (root / archive.name).is_file() else archive.n_bytes - in_download
        to_unpack = archive.unpacked_bytes - sum(map(_size, archive.find(root)))
        needed = max(needed, used + to_download + to_unpack)
        used += to_unpack - in_download
    if needed > free:
        names = ", ".join(archive.name for archive in missing)
        raise OSError(
            f"{root} has room for {_gigabytes(free)}, but {_gigabytes(needed)} are needed to download and "
            f"unpack {names}: delete something, or use another disk."
        )


def _gigabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e8 else f"{n_bytes:,} bytes"


def _fetch_archive(archive: Archive, root: Path) -> Path:
    """The archive, checked: the user's, or downloaded."""
    own = root / archive.name
    if own.is_file():
        if not check_integrity(own, archive.md5):
            raise ValueError(
                f"{own} is not the official file, whose MD5 checksum is {archive.md5}: delete it, and it is "
                "downloaded again."
            )
        return own
    path = archive.unfinished(root)
    _fetch(archive, path)
    if not check_integrity(path, archive.md5):
        path.unlink()
        raise ValueError(
            f"{archive.name} from {archive.url} arrived damaged and was deleted, as its MD5 checksum is not "
            f"{archive.md5}: download it again."
        )
    return path


def _fetch(archive: Archive, path: Path) -> None:
    """Download an archive, after the bytes that are there, with new attempts as long as bytes arrive."""
    n_failed = 0
    with _progress_bar(archive.name, archive.n_bytes, initial=_size(path), unit="B", unit_scale=True) as bar:
        while (start := _size(path)) < archive.n_bytes:
            problem = _fetch_rest(archive, path, start, bar)
            if _size(path) > start:
                n_failed = 0
                continue
            if n_failed == len(RETRY_SECONDS):
                raise OSError(
                    f"{archive.url} cannot be downloaded ({problem}): {_gigabytes(start)} of "
                    f"{_gigabytes(archive.n_bytes)} are there, and the next download continues with them."
                )
            time.sleep(RETRY_SECONDS[n_failed])
            n_failed += 1


def _fetch_rest(archive: Archive, path: Path, start: int, bar: Any) -> str:
    """Request the bytes from ``start`` on and append them; return why it ended if there are fewer."""
    request = urllib.request.Request(archive.url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            _append(archive, path, start, response, bar)
    except urllib.error.HTTPError as error:
        if error.code not in TEMPORARY_ERRORS:
            raise OSError(
                f"{archive.url} cannot be downloaded ({error.code} {error.reason}): download {archive.name} "
                f"elsewhere, and put it into {path.parent}."
            ) from None
        return f"{error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:
        if getattr(error, "filename", None) is not None:  # not of the network: a full disk, for instance
            raise
        return str(getattr(error, "reason", error)) or type(error).__name__
    return "the connection was closed"


def _append(archive: Archive, path: Path, start: int, response: http.client.HTTPResponse, bar: Any) -> None:
    """Write the body of a response after the bytes that are there, or over them if it has all bytes."""
    resumes = response.status == http.HTTPStatus.PARTIAL_CONTENT
    first = start if resumes else 0
    if response.length is not None and first + response.length != archive.n_bytes:
        raise ValueError(
            f"{archive.url} has {first + response.length:,} bytes, not {archive.n_bytes:,}: it is not the "
            f"official file, or was replaced there; download {archive.name} elsewhere, and put it into "
            f"{path.parent}."
        )
    bar.n = first  # earlier attempts have counted their bytes
    with path.open("ab" if resumes else "wb") as file:
        while chunk := response.read(CHUNK_BYTES):
            with naming_file(path):
                file.write(chunk)
            bar.update(len(chunk))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _unpack(archive: Archive, path: Path, root: Path) -> None:
    """Unpack an archive, with a marker that is there until it is done."""
    marker = archive.marker(root)
    with naming_file(root):
        if archive.name.endswith(".zip"):
            _unpack_zip(path, root, archive.name, marker)
        else:
            _unpack_tar(path, root, archive.name, marker)
        marker.unlink()


def _unpack_zip(path: Path, root: Path, name: str, marker: Path) -> None:
    with zipfile.ZipFile(path) as file:
        members = file.infolist()
        for member in members:
            check_inside(member.filename, f"{name}: a name")
        marker.touch()
        for member in _progress_bar(f"unpack {name}", members, unit="file"):
            if not member.is_dir():
                _remove(root / member.filename)
            file.extract(member, root)  # compares the file with its CRC


def _unpack_tar(path: Path, root: Path, name: str, marker: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise OSError(f"{name} cannot be unpacked safely by this Python: use 3.11.4 or newer.")
    with tarfile.open(path) as file:
        members = file.getmembers()
        for member in members:
            check_inside(member.name, f"{name}: a name")
            try:
                tarfile.data_filter(member, str(root))  # rejects links that lead out, and devices
            except tarfile.FilterError as error:
                raise ValueError(f"{name} must not be unpacked: {error}.") from None
        marker.touch()
        for member in _progress_bar(f"unpack {name}", members, unit="file"):
            if not member.isdir():
                _remove(root / member.name)
            file.extract(member, root, filter="data")


def _remove(path: Path) -> None:
    """Remove a file of an interrupted unpacking; to overwrite it is slow on some file systems."""
    path.unlink(missing_ok=True)


def _progress_bar(label: str, what: Any, **options: Any) -> Any:
    """A bar over an iterable, or up to a number."""
    seconds = 0.1 if sys.stdout.isatty() else 30.0
    total = {"total": what} if isinstance(what, int) else {"iterable": what}
    return tqdm(**total, desc=label, file=sys.stdout, dynamic_ncols=True, mininterval=seconds, **options)
