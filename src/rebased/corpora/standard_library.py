"""A corpus that every machine has: the sources of Python's standard library, and the texts of its help."""

import importlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from rebased.corpora.pieces import Piece, pieces_of, slices
from rebased.corpora.records import Reading

__all__ = ["find_modules", "read_help_topics"]

_NOT_THE_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_TOPICS = Path("pydoc_data/topics.py")
"""Not a source, but the texts of ``help()`` as one literal: read as the texts that they are."""


def find_modules() -> list[Path]:
    """Sources by name; neither tests nor what was installed beside them."""
    library = Path(sysconfig.get_path("stdlib"))
    found = [path.relative_to(library) for path in library.rglob("*.py")]
    modules = [path for path in sorted(found) if not _NOT_THE_LIBRARY & set(path.parts) and path != _TOPICS]
    if not modules:
        raise ValueError(f"source='python': this Python has no sources in {library}; give files of your own")
    return [library / path for path in modules]


def read_help_topics(set_name: str, reading: Reading) -> Iterator[Piece]:
    """What ``help("LOOPING")`` and the like would show; nothing where Python comes without."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        return
    for name in sorted(topics):
        yield from pieces_of(slices(reading.clean(topics[name], f"help({name!r})")), set_name)
