"""A file that only grows, and knows its checksum at every length."""

import hashlib
import os
from pathlib import Path

__all__ = ["GrowingFile", "check_written"]

_BLOCK = 2**20


def check_written(path: Path, length: int) -> None:
    """ValueError, saying what to do, if the file has fewer bytes."""
    size = path.stat().st_size if path.is_file() else 0
    if size < length:
        raise ValueError(
            f"{path} has {size:,} of the {length:,} bytes that were written before the interruption; delete "
            f"{path.parent} and prepare it anew"
        )


class GrowingFile:
    """Opened with ``length`` bytes to keep; what was written beyond them before an interruption is cut off.

    They must be there: ``check_written`` says so.
    """

    def __init__(self, path: Path, length: int = 0) -> None:
        self.path = path
        self.length = length
        self._hash = hashlib.sha256()
        # Without a buffer: where the disk is full, writing fails, and closing does not fail once more.
        if length == 0:
            self._file = path.open("wb", buffering=0)
            return
        self._file = path.open("r+b", buffering=0)
        while (left := length - self._file.tell()) > 0:
            self._hash.update(self._file.read(min(_BLOCK, left)))
        self._file.truncate()

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self._hash.update(data)
        self.length += len(data)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def sync(self) -> None:
        """Return when what was written survives the machine's failing."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
