"""Sources by name: a file, a folder, ``hf:NAME[:CONFIG[:SPLIT]]`` or ``python``; each is inputs, read in order."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rebased.corpora.compression import COMPRESSIONS
from rebased.corpora.json_lines import read_json_lines
from rebased.corpora.pieces import Piece
from rebased.corpora.records import Reading
from rebased.corpora.standard_library import find_modules, read_help_topics
from rebased.corpora.tables import read_hub_dataset, read_parquet
from rebased.corpora.text_files import read_text_file

__all__ = ["PYTHON", "Input", "Source", "ending", "find_source"]

PYTHON = "python"
"""The name of the source that every machine has."""
_HUB = "hf:"
_TEXT = {
    *(".txt", ".text", ".md", ".markdown", ".rst", ".org", ".tex", ".html", ".htm", ".xml"),
    *(".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu"),
    *(".java", ".js", ".ts", ".go", ".rs", ".rb", ".sh", ".sql"),
}
_JSON_LINES = {".jsonl", ".ndjson"}
_PARQUET = {".parquet"}


@dataclass(frozen=True)
class Input:
    """What is read in one go: a file, or a dataset."""

    name: str
    size: int
    """In bytes as it lies on disk; 0 where that is not known."""
    read: Callable[[Reading], Iterator[Piece]]


@dataclass(frozen=True)
class Source:
    """What a corpus is made of, by a name that was given: a file, a folder, a dataset, or Python's library."""

    name: str
    inputs: tuple[Input, ...]
    left_out: tuple[Path, ...] = ()
    """Files of a folder whose endings are not known."""

    def describe(self) -> dict[str, Any]:
        """What tells, without reading it, whether it is still the same."""
        listing = "\n".join(f"{each.size} {each.name}" for each in self.inputs)
        return {
            "source": self.name,
            "files": len(self.inputs),
            "bytes": sum(each.size for each in self.inputs),
            "listing": hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest(),
        }


def find_source(source: str | Path) -> Source:
    """ValueError for what is not there, or of no known kind. A `Path` is one, whatever it is named."""
    name, path = str(source), Path(source)
    if source == PYTHON:
        return Source(name, tuple(_python_inputs()))
    if isinstance(source, str) and source.startswith(_HUB):
        return Source(name, (_hub_input(name),))
    if path.is_dir():
        return _folder_source(name, path)
    if not path.is_file():
        raise ValueError(f"source={name!r} is neither a file nor a folder; datasets by name begin with {_HUB}")
    if path.suffix and not _is_known(path):
        raise ValueError(f"source={name!r} must end in {_known()}, or one of these and {' or '.join(COMPRESSIONS)}")
    return Source(name, (_file_input(path, path.name.partition(".")[0] or path.name),))


def ending(path: Path) -> str:
    """What decides of a file; compression is a part of it here."""
    return _kind(path) + (path.suffix if path.suffix in COMPRESSIONS else "")


def _folder_source(name: str, folder: Path) -> Source:
    files = _files_below(folder)
    known = [file for file in files if _is_known(file)]
    if not known:
        raise ValueError(f"source={name!r} has no files that end in {_known()}")
    inputs = tuple(_file_input(file, folder.resolve().name) for file in known)
    return Source(name, inputs, tuple(file for file in files if not _is_known(file)))


def _files_below(folder: Path) -> list[Path]:
    """By name, the same on every machine; without hidden ones."""
    found = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    visible = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    return [folder / path for path in sorted(visible, key=lambda path: path.parts)]


def _file_input(path: Path, set_name: str) -> Input:
    kind = _kind(path)
    read = read_json_lines if kind in _JSON_LINES else read_parquet if kind in _PARQUET else read_text_file
    return Input(str(path), path.stat().st_size, partial(read, path, set_name))


def _python_inputs() -> Iterator[Input]:
    for path in find_modules():
        yield _file_input(path, PYTHON)
    yield Input("the texts of Python's help", 0, partial(read_help_topics, "python_help"))


def _hub_input(source: str) -> Input:
    name, _, rest = source.removeprefix(_HUB).partition(":")
    config, _, split = rest.partition(":")
    if not name:
        raise ValueError(f"source={source!r} must be {_HUB}NAME, {_HUB}NAME:CONFIG or {_HUB}NAME:CONFIG:SPLIT")
    set_name = name.rstrip("/").rpartition("/")[2]
    return Input(source, 0, partial(read_hub_dataset, name, config or None, split or "train", set_name))


def _kind(path: Path) -> str:
    """The suffix that counts: compression is no kind."""
    return (path.with_suffix("") if path.suffix in COMPRESSIONS else path).suffix.lower()


def _is_known(path: Path) -> bool:
    kind = _kind(path)
    compressible = kind in _TEXT | _JSON_LINES
    return compressible or (kind in _PARQUET and path.suffix not in COMPRESSIONS)


def _known() -> str:
    return ", ".join([*sorted(_TEXT), *sorted(_JSON_LINES), *sorted(_PARQUET)])
