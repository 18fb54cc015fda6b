import pytest

from avalanche_agcn.experiments.files import write_atomically, write_json, write_text


def test_a_file_is_written_into_a_new_folder(tmp_path):
    write_json(tmp_path / "new" / "a.json", {"ä": [1, None]})
    assert (tmp_path / "new" / "a.json").read_text() == '{\n "ä": [\n  1,\n  null\n ]\n}\n'


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"half of the n")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, write)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_nan_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(tmp_path / "a.json", float("nan"))


def test_a_file_may_be_read_by_whom_any_new_file_may(tmp_path):
    (tmp_path / "other").touch()
    write_text(tmp_path / "written", "text")
    assert (tmp_path / "written").stat().st_mode == (tmp_path / "other").stat().st_mode
