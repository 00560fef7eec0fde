"""Files read as bytes, compressed or not; a compressed one that ends too early is an error, never a shorter text."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

__all__ = ["COMPRESSIONS", "open_bytes"]

COMPRESSIONS = (".zst", ".gz")
_BLOCK = 2**13
"""Compressed bytes that are unpacked at once. Text becomes some ten times as long, which stays small."""


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """ValueError, while it is read too, if it is not what its suffix says."""
    try:
        if path.suffix == ".zst":
            with path.open("rb") as packed, io.BufferedReader(_Zstandard(packed), 2**20) as unpacked:
                yield cast(BinaryIO, unpacked)
        elif path.suffix == ".gz":
            with gzip.open(path, "rb") as unpacked_gzip:
                yield cast(BinaryIO, unpacked_gzip)
        else:
            with path.open("rb") as plain:
                yield plain
    except (_DamagedError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} cannot be unpacked: {error}") from error


class _DamagedError(Exception):
    pass


class _Zstandard(io.RawIOBase):
    """One frame or several. The library's own reader would take a file that was cut off for a whole one."""

    def __init__(self, packed: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise ImportError("reading .zst needs zstandard: pip install zstandard") from error
        self._packed = packed
        self._library = zstandard
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._pending = b""
        """What was read beyond a frame's end: the next frame's beginning."""
        self._unpacked = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        while not self._unpacked:
            block = self._pending or self._packed.read(_BLOCK)
            if not block:
                if self._frame is not None:
                    raise _DamagedError("it ends too early")
                return 0
            self._unpack(block)
        count = min(len(buffer), len(self._unpacked))
        buffer[:count] = self._unpacked[:count]
        self._unpacked = self._unpacked[count:]
        return count

    def _unpack(self, block: bytes) -> None:
        if self._frame is None:
            # Large windows, as `zstd --long` makes them, are allowed.
            self._frame = self._library.ZstdDecompressor(max_window_size=2**31).decompressobj()
        try:
            self._unpacked = memoryview(self._frame.decompress(block))
        except self._library.ZstdError as error:
            raise _DamagedError(str(error)) from error
        self._pending = b""
        if self._frame.eof:
            self._pending = self._frame.unused_data
            self._frame = None
