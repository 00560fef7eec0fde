"""Compressed files: read as their content, and never as a part of it."""

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rebased.corpora.compression import open_bytes

PACK = {".zst": zstandard.compress, ".gz": gzip.compress, ".txt": bytes}


def read(path: Path) -> bytes:
    with open_bytes(path) as file:
        return file.read()


@settings(max_examples=30)
@given(parts=st.lists(st.binary(max_size=300), min_size=1, max_size=5), suffix=st.sampled_from(sorted(PACK)))
def test_content_comes_back(parts: list[bytes], suffix: str) -> None:
    """Of one frame or several, as `cat a.zst b.zst` makes them, empty ones too."""
    with TemporaryDirectory() as name:
        path = Path(name) / f"a{suffix}"
        path.write_bytes(b"".join(map(PACK[suffix], parts)))
        assert read(path) == b"".join(parts)


def test_more_than_is_unpacked_at_once(tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000
    stored = zstandard.ZstdCompressor(level=1).compress(content) + zstandard.compress(content[::-1])
    (tmp_path / "a.zst").write_bytes(stored)
    assert read(tmp_path / "a.zst") == content + content[::-1]


@pytest.mark.parametrize("suffix", [".zst", ".gz"])
def test_cut_off_anywhere(tmp_path: Path, suffix: str) -> None:
    """A download that broke off is an error, wherever it did."""
    whole = PACK[suffix](b"some text, and more of it; " * 20 + bytes(range(200)))
    path = tmp_path / f"a{suffix}"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=f"a{suffix} cannot be unpacked"):
            read(path)
    path.write_bytes(whole)
    assert len(read(path)) == 740
