"""A file that is gone on with: what counts is kept, what does not is cut off, and the checksum is that of the whole."""

import hashlib
from pathlib import Path

import pytest

from rebased.corpora.growing_file import GrowingFile, check_written


@pytest.mark.parametrize("kept", [0, 1, 6, 9])
def test_goes_on(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"123456789")
    file = GrowingFile(path, kept)
    assert path.read_bytes() == b"123456789"[:kept]
    file.write(b"ab")
    file.write(b"")
    file.sync()
    file.close()
    expected = b"123456789"[:kept] + b"ab"
    assert path.read_bytes() == expected
    assert (file.length, file.sha256) == (len(expected), hashlib.sha256(expected).hexdigest())


def test_fewer_bytes_than_were_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    check_written(tmp_path / "a", 3)
    check_written(tmp_path / "absent", 0)
    with pytest.raises(
        ValueError, match=r"a has 3 of the 4 bytes that were written before the interruption; delete .* anew"
    ):
        check_written(tmp_path / "a", 4)
