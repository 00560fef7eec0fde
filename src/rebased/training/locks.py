"""Locks between processes: files that the system unlocks when their holder dies, however it dies."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["LockedError", "locked"]


class LockedError(RuntimeError):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, what: str, *, patience: float = 5.0) -> Iterator[None]:
    """Hold the lock of this file, which says by whom. LockedError if others have it for ``patience`` seconds.

    The patience is for a holder that was just killed and takes a moment to go.
    """
    import fcntl  # not on Windows, where the rest of the command line should work

    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    with path.open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    file.seek(0)
                    holder = file.read() or "unknown"
                    raise LockedError(f"{what} is in use by process {holder}, which holds {path}") from None
            time.sleep(0.1)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
