"""One preparation at a time in a folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["alone_in"]


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Until the process ends, however it ends. ValueError if another is at work there.

    The folder itself is locked, not a file in it: one that turns out to hold other things is left as it was.
    """
    try:
        import fcntl
    except ImportError:  # on Windows nothing is locked
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is being prepared by another process") from None
        yield
    finally:
        os.close(descriptor)
