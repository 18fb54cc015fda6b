"""Split lists that several test files write."""

import pytest


@pytest.fixture
def write_lists(tmp_path):
    """Writes csv files, name → rows, into a folder; as the published ones, with Windows line ends."""

    def write(lists, folder="lists"):
        for name, rows in lists.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes("\r\n".join(rows).encode())
        return tmp_path / folder

    return write
