"""Files that are there whole or not at all, whoever is killed while they are written."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing", "sync", "write_json", "write_text"]


def write_json(path: Path, value: object, *, sort_keys: bool = False) -> None:
    """For people to read, too. ValueError for a number that is not finite, which is none of JSON."""
    write_text(path, json.dumps(value, indent=2, sort_keys=sort_keys, allow_nan=False) + "\n")


def write_text(path: Path, text: str, *, durable: bool = True, shared: bool = False) -> None:
    with replacing(path, durable=durable, shared=shared) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path, *, durable: bool = True, shared: bool = False) -> Iterator[Path]:
    """A path beside ``path`` to write to, which then takes its place: readers see the old file or the new one.

    A ``durable`` file survives a failure of the machine, not only of the process; that takes as long as the disk needs.
    ``shared``: other processes may write the same file at the same time, without a lock. One that is killed then leaves
    its partial file behind.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial" if shared else f".{path.name}.partial")
    partial.touch()
    # As the user has it: some libraries replace it by a file of their own that nobody else may read.
    mode = partial.stat().st_mode
    try:
        yield partial
        partial.chmod(mode)
        if durable:
            sync(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)  # which has the name


def sync(path: Path) -> None:
    """Wait until a file, or a directory's list of names, is on the disk."""
    if os.name == "nt" and path.is_dir():  # Windows opens none
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
