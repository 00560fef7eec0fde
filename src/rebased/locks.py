"""Locks between processes, which the system unlocks when their holder dies, however it dies."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["LockedError", "alone_in", "locked"]


class LockedError(RuntimeError):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, what: str, *, patience: float = 5.0) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the file holds the owner's process id.

    LockedError, which begins with ``what``, if another process keeps it for ``patience`` seconds: one that was just
    killed takes a moment to go.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        if not _take(file.fileno(), patience):
            file.seek(0)
            holder = file.read() or "unknown"
            raise LockedError(f"{what} is in use by process {holder}, which holds {path}")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def alone_in(folder: Path, doing: str) -> Iterator[None]:
    """Hold the lock of the folder itself. A lock file would be left in folders that turn out to belong to others.

    ValueError, at once, if another process has it; ``doing`` says there what is done to the folder. On Windows nothing
    is locked.
    """
    if os.name == "nt":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not _take(descriptor, patience=0):
            raise ValueError(f"{folder} is {doing} by another process")
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, patience: float) -> bool:
    """Whether the lock could be had within so many seconds. It goes with the descriptor."""
    import fcntl  # not on Windows, where the rest of the command line should work

    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
        else:
            return True
