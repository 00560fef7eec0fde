"""What a preparation is asked for, and whether a folder holds just that."""

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rebased.corpora.records import Reading
from rebased.corpora.sources import Input, Source, ending, find_source

__all__ = ["DealtInput", "Request", "check_same", "make_request"]


@dataclass(frozen=True)
class DealtInput:
    """An input, and how much of it is for validation."""

    input: Input
    share: float

    def split_of(self, text: str) -> str:
        """Where a document that begins with this piece goes: decided by its text alone, not by its place."""
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        return "validation" if number < self.share * 2**64 else "train"


@dataclass(frozen=True)
class Request:
    """A preparation's arguments, checked, and the inputs that they name on this machine."""

    inputs: tuple[DealtInput, ...]
    reading: Reading
    shard_tokens: int
    fields: dict[str, Any]
    """All that decides what is written, as the manifest has it."""
    left_out: tuple[Path, ...] = ()
    """Files in the sources' folders whose endings are not known."""

    def count_left_out(self, out: Path) -> dict[str, int]:
        """By their endings. The corpus itself may lie in such a folder, and is not meant."""
        files = (path for path in self.left_out if out.resolve() not in path.resolve().parents)
        return dict(Counter(map(ending, files)))


def make_request(
    sources: Sequence[str | Path],
    validation: float | Sequence[str | Path],
    reading: Reading,
    *,
    shard_tokens: int,
) -> Request:
    """ValueError for what cannot be prepared, before anything is."""
    if isinstance(sources, str | Path) or not sources:
        raise ValueError(f"sources={sources!r} must be a list with one source at least")
    if shard_tokens < 1:
        raise ValueError(f"shard_tokens={shard_tokens} must be positive")
    if isinstance(validation, int | float):
        share, held_out = float(validation), list[Source]()
        if not 0 <= share <= 1:
            raise ValueError(f"validation={validation} must be from 0 to 1, or a list of sources")
    elif isinstance(validation, str | Path):
        raise ValueError(f"validation={str(validation)!r} must be from 0 to 1, or a list of sources")
    else:
        share, held_out = 0.0, list(map(find_source, validation))
    trained_on = list(map(find_source, sources))
    _check_apart(trained_on, held_out)
    inputs = [DealtInput(each, share) for source in trained_on for each in source.inputs]
    inputs += [DealtInput(each, 1.0) for source in held_out for each in source.inputs]
    fields = {
        "sources": [source.describe() for source in trained_on],
        "validation": [source.describe() for source in held_out] or share,
        "text_field": reading.text_field,
        "set_field": reading.set_field,
        "errors": reading.errors,
        "shard_tokens": shard_tokens,
    }
    left_out = tuple(path for source in (*trained_on, *held_out) for path in source.left_out)
    return Request(tuple(inputs), reading, shard_tokens, fields, left_out)


def _check_apart(trained_on: list[Source], held_out: list[Source]) -> None:
    names = {os.path.realpath(each.name) for source in trained_on for each in source.inputs}
    for each in (each for source in held_out for each in source.inputs):
        if os.path.realpath(each.name) in names:
            raise ValueError(f"validation: {each.name} is also among the sources to train on; give it only once")


def check_same(folder: Path, written: dict[str, Any], asked: dict[str, Any]) -> None:
    """ValueError, saying what differs."""
    differences = [
        f"{name} was {_told(written.get(name))} and is now {_told(asked.get(name))}"
        for name in sorted({*written, *asked})
        if written.get(name) != asked.get(name)
    ]
    if differences:
        raise ValueError(
            f"{folder} holds another corpus: {'; '.join(differences)}; give the same arguments, or another folder"
        )


def _told(value: object) -> str:
    """Sources by their names and sizes."""
    return ", ".join(map(_source, value)) if isinstance(value, list) else repr(value)


def _source(read: dict[str, Any]) -> str:
    files = "1 file" if read["files"] == 1 else f"{read['files']:,} files"
    return f"{read['source']} ({read['bytes']:,} bytes in {files}, list {read['listing'][:8]})"
