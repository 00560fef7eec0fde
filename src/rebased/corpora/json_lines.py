"""JSON lines: a line is a document."""

import json
from collections.abc import Iterator
from pathlib import Path

from rebased.corpora.compression import open_bytes
from rebased.corpora.pieces import Piece
from rebased.corpora.records import Reading

__all__ = ["LINE", "read_json_lines"]

LINE = 2**28
"""Bytes of a line, at most: JSON is read by whole lines, so a longer one might not fit into memory."""


def read_json_lines(path: Path, set_name: str, reading: Reading) -> Iterator[Piece]:
    """Empty lines are no documents."""
    with open_bytes(path) as file:
        number = 0
        while line := file.readline(LINE + 1):
            number += 1
            place = f"{path}, line {number:,}"
            if len(line) > LINE:
                raise ValueError(
                    f"{place}: it is longer than {LINE:,} bytes; split the document, or store it as plain text"
                )
            if line.strip():
                yield from reading.document(_parse(line, place, reading.errors), set_name, place)


def _parse(line: bytes, place: str, errors: str) -> object:
    try:
        text = line.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{place} is not UTF-8: {error.reason} at byte {error.start:,} of it; errors='replace' puts U+FFFD there"
        ) from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # of numbers with thousands of digits too
        raise ValueError(f"{place} is not JSON: {error}") from None
