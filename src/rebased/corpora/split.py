"""One split of a corpus: a stream of tokens over memory-mapped shards, and where its documents end."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebased.corpora.manifest import Manifest, StoredFile, read_manifest

__all__ = ["COLUMNS", "Documents", "Split"]

COLUMNS = 3
"""Numbers kept for each document: its end, its set's number, its bytes; int64, little-endian."""


@dataclass(frozen=True)
class Documents:
    """A number for each document, in the order of the stream."""

    ends: NDArray[np.int64]
    """Where it ends in the stream of tokens, after its end-of-text."""
    set_ids: NDArray[np.int64]
    bytes: NDArray[np.int64]
    """Of its text, in UTF-8."""

    @property
    def starts(self) -> NDArray[np.int64]:
        return self.ends - self.lengths

    @property
    def lengths(self) -> NDArray[np.int64]:
        """In tokens, the end-of-text included."""
        return np.diff(self.ends, prepend=0)


class Split:
    """Tokens by position, documents by number. A copy in another process maps the same files."""

    def __init__(self, folder: Path, name: str, manifest: Manifest) -> None:
        stored = manifest.splits[name]
        self.folder = folder
        self.name = name
        self.num_tokens = stored.num_tokens
        self.num_documents = stored.num_documents
        self.num_bytes = stored.num_bytes
        self.sets = manifest.sets
        """Names by their numbers: those of the whole corpus, so that both splits number them alike."""
        self.end_of_text = manifest.end_of_text
        dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self._shards = [_map(folder, file, dtype) for file in stored.shards]
        self._borders = np.cumsum([0, *(len(shard) for shard in self._shards)])
        self._documents = stored.documents
        if self._borders[-1] != self.num_tokens:
            raise ValueError(
                f"{folder}: the shards of {name} hold {self._borders[-1]:,} tokens of {manifest.dtype}, and the "
                f"manifest says {self.num_tokens:,}; delete the folder and prepare it anew"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.folder, self.name)  # by default the mapped files would travel whole

    def __repr__(self) -> str:
        return f"Split({self.name!r}, num_tokens={self.num_tokens}, num_documents={self.num_documents})"

    def tokens(self, start: int, stop: int) -> NDArray[np.int64]:
        """Those at positions ``start`` to ``stop``, the latter excluded, over the borders of shards."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise ValueError(f"start={start}, stop={stop} must be ordered and within 0 and {self.num_tokens}")
        out = np.empty(stop - start, dtype=np.int64)
        shard = int(np.searchsorted(self._borders, start, side="right")) - 1
        at = start
        while at < stop:
            first = int(self._borders[shard])
            end = min(stop, int(self._borders[shard + 1]))
            out[at - start : end - start] = self._shards[shard][at - first : end - first]
            at, shard = end, shard + 1
        return out

    @cached_property
    def documents(self) -> Documents:
        """Read once; ValueError if it does not fit the stream."""
        rows = _map(self.folder, self._documents, np.dtype("<i8")).reshape(-1, COLUMNS)
        ends, set_ids, num_bytes = (np.array(column, dtype=np.int64) for column in rows.T)
        last = int(ends[-1]) if len(ends) else 0
        if (len(ends), last) != (self.num_documents, self.num_tokens):
            raise ValueError(
                f"{self.folder / self._documents.name} tells of {len(ends):,} documents and {last:,} tokens, the "
                f"manifest of {self.num_documents:,} and {self.num_tokens:,}; delete the folder and prepare it anew"
            )
        return Documents(ends, set_ids, num_bytes)


def _map(folder: Path, file: StoredFile, dtype: np.dtype[Any]) -> NDArray[Any]:
    file.check_size(folder)
    if file.size == 0:  # nothing cannot be mapped
        return np.empty(0, dtype=dtype)
    if file.size % dtype.itemsize:
        raise ValueError(f"{folder / file.name} has {file.size:,} bytes, which are no whole number of {dtype.name}")
    return np.memmap(folder / file.name, dtype=dtype, mode="r")


def _reopen(folder: Path, name: str) -> Split:
    return Split(folder, name, read_manifest(folder))
