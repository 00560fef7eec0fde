"""Writes one split: shards of a fixed number of tokens, and a row for each document."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebased.corpora.growing_file import GrowingFile, check_written
from rebased.corpora.manifest import StoredFile, StoredSplit
from rebased.corpora.split import COLUMNS
from rebased.corpora.state import SplitState

__all__ = ["SplitWriter"]

_ROW = COLUMNS * 8


class SplitWriter:
    """Goes on from ``state``, whose files lie in ``folder``."""

    def __init__(self, folder: Path, name: str, state: SplitState, *, dtype: np.dtype[Any], shard_tokens: int) -> None:
        self._folder = folder
        self._name = name
        self._dtype = dtype
        self._shard_size = shard_tokens * dtype.itemsize
        self._shards = list(state.shards)
        documents = folder / f"{name}.documents"
        # All is checked before anything is opened.
        for shard in self._shards:
            shard.check_size(folder)
        check_written(self._shard_path(), state.rest)
        check_written(documents, state.num_documents * _ROW)
        self._rest = GrowingFile(self._shard_path(), state.rest) if state.rest else None
        self._documents = GrowingFile(documents, state.num_documents * _ROW)
        self.num_tokens = state.num_tokens
        self.num_documents = state.num_documents
        self.num_bytes = state.num_bytes

    @property
    def num_shards(self) -> int:
        """Those that are full."""
        return len(self._shards)

    def write(self, tokens: NDArray[Any]) -> None:
        data = memoryview(tokens.astype(self._dtype).tobytes())
        self.num_tokens += len(tokens)
        while data:
            if self._rest is None:
                self._rest = GrowingFile(self._shard_path())
            room = self._shard_size - self._rest.length
            self._rest.write(bytes(data[:room]))
            data = data[room:]
            if self._rest.length == self._shard_size:
                self._finish_shard(self._rest)

    def end_document(self, set_id: int, num_bytes: int) -> None:
        self._documents.write(np.array([self.num_tokens, set_id, num_bytes], dtype="<i8").tobytes())
        self.num_documents += 1
        self.num_bytes += num_bytes

    def sync(self) -> SplitState:
        """What an interruption from now on leaves in place."""
        self._documents.sync()
        rest = 0
        if self._rest is not None:
            self._rest.sync()
            rest = self._rest.length
        return SplitState(tuple(self._shards), rest, self.num_tokens, self.num_documents, self.num_bytes)

    def finish(self) -> StoredSplit:
        """The last shard is as long as it is."""
        if self._rest is not None:
            self._finish_shard(self._rest)
        self._documents.sync()
        documents = StoredFile(self._documents.path.name, self._documents.length, self._documents.sha256)
        return StoredSplit(self.num_tokens, self.num_documents, self.num_bytes, tuple(self._shards), documents)

    def close(self) -> None:
        self._documents.close()
        if self._rest is not None:
            self._rest.close()

    def _shard_path(self) -> Path:
        return self._folder / f"{self._name}-{len(self._shards):05d}.tokens"

    def _finish_shard(self, file: GrowingFile) -> None:
        file.sync()
        file.close()
        self._shards.append(StoredFile(file.path.name, file.length, file.sha256))
        self._rest = None
