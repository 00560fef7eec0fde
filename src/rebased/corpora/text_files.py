"""Plain text: a file is a document, read in bounded pieces."""

import codecs
from collections.abc import Iterator
from pathlib import Path

from rebased.corpora.compression import open_bytes
from rebased.corpora.pieces import Piece, pieces_of
from rebased.corpora.records import Reading

__all__ = ["read_text_file"]

_CHUNK = 2**20


def read_text_file(path: Path, set_name: str, reading: Reading) -> Iterator[Piece]:
    """Every character as it is, line ends and byte-order marks too."""
    return pieces_of(_decode(path, reading.errors), set_name)


def _decode(path: Path, errors: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    num_read = 0
    with open_bytes(path) as file:
        while True:
            chunk = file.read(_CHUNK)
            pending = len(decoder.getstate()[0])
            try:
                yield decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                at = num_read - pending + error.start
                raise ValueError(
                    f"{path} is not UTF-8: {error.reason} at byte {at:,}; errors='replace' puts U+FFFD there"
                ) from None
            if not chunk:
                return
            num_read += len(chunk)
