"""Pieces of documents to the files of a corpus, with commits on the way."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rebased.corpora.encoding import Encoder
from rebased.corpora.manifest import StoredSplit
from rebased.corpora.pieces import Piece
from rebased.corpora.request import Request
from rebased.corpora.split_writer import SplitWriter
from rebased.corpora.state import OpenDocument, State, write_state

__all__ = ["CorpusWriter", "Progress"]

_BATCH_CHARACTERS = 2**21
_BATCH_PIECES = 2**12
_COMMIT_SECONDS = 10.0
"""Between commits, if no shard becomes full: what an interruption costs at most, and a batch."""
_MOST_SETS = 10_000


@dataclass(frozen=True)
class Progress:
    """All that is written so far, before interruptions too."""

    input: str
    """What is being read."""
    inputs_read: int
    num_inputs: int
    documents: int
    tokens: int
    bytes: int
    """Of the text, in UTF-8."""


class _Placed(NamedTuple):
    input: int
    number: int
    """Of the piece in its input."""
    piece: Piece


class CorpusWriter:
    """Goes on from ``state``, whose files lie in ``folder``."""

    def __init__(self, folder: Path, request: Request, encoder: Encoder, state: State) -> None:
        self._folder = folder
        self._request = request
        self._encoder = encoder
        self._state = state
        self._sets = {name: number for number, name in enumerate(state.sets)}
        self._document = state.document
        self._writers = {
            name: SplitWriter(folder, name, split, dtype=encoder.dtype, shard_tokens=request.shard_tokens)
            for name, split in state.splits.items()
        }
        self._committed = time.monotonic()

    @property
    def sets(self) -> tuple[str, ...]:
        return tuple(self._sets)

    def run(self) -> Iterator[Progress]:
        """Write all that is not written yet."""
        for batch in _batches(self._pieces()):
            for placed, tokens in zip(batch, self._encoder([placed.piece.text for placed in batch]), strict=True):
                num_shards = self._num_shards
                self._write(placed, tokens)
                if self._num_shards > num_shards or time.monotonic() > self._committed + _COMMIT_SECONDS:
                    self._commit(placed)
            yield self._progress(batch[-1].input)

    def finish(self) -> dict[str, StoredSplit]:
        return {name: writer.finish() for name, writer in self._writers.items()}

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _pieces(self) -> Iterator[_Placed]:
        skipped = self._state.pieces
        for index in range(self._state.input, len(self._request.inputs)):
            pieces = enumerate(self._request.inputs[index].input.read(self._request.reading))
            for number, piece in islice(pieces, skipped, None):
                yield _Placed(index, number, piece)
            skipped = 0

    def _write(self, placed: _Placed, tokens: NDArray[Any]) -> None:
        piece = placed.piece
        if piece.begins:
            split = self._request.inputs[placed.input].split_of(piece.text)
            self._document = OpenDocument(split, self._set_id(piece.set, placed), 0)
        assert self._document is not None
        self._document = replace(self._document, num_bytes=self._document.num_bytes + len(piece.text.encode()))
        writer = self._writers[self._document.split]
        writer.write(np.append(tokens, self._encoder.end_of_text) if piece.ends else tokens)
        if piece.ends:
            writer.end_document(self._document.set_id, self._document.num_bytes)
            self._document = None

    def _set_id(self, name: str, placed: _Placed) -> int:
        number = self._sets.setdefault(name, len(self._sets))
        if number >= _MOST_SETS:
            where, field = self._request.inputs[placed.input].input.name, self._request.reading.set_field
            raise ValueError(
                f"{where}: set_field={field!r} has more than {_MOST_SETS:,} values; choose a field that names few sets"
            )
        return number

    @property
    def _num_shards(self) -> int:
        return sum(writer.num_shards for writer in self._writers.values())

    def _commit(self, placed: _Placed) -> None:
        state = State(
            request=self._state.request,
            input=placed.input,
            pieces=placed.number + 1,
            document=self._document,
            sets=self.sets,
            splits={name: writer.sync() for name, writer in self._writers.items()},
        )
        write_state(self._folder, state)
        self._committed = time.monotonic()

    def _progress(self, index: int) -> Progress:
        writers = self._writers.values()
        unfinished = 0 if self._document is None else self._document.num_bytes
        return Progress(
            input=self._request.inputs[index].input.name,
            inputs_read=index,
            num_inputs=len(self._request.inputs),
            documents=sum(writer.num_documents for writer in writers),
            tokens=sum(writer.num_tokens for writer in writers),
            bytes=sum(writer.num_bytes for writer in writers) + unfinished,
        )


def _batches(pieces: Iterator[_Placed]) -> Iterator[list[_Placed]]:
    """Enough to keep every thread of the tokenizer at work, few enough for memory."""
    batch, characters = list[_Placed](), 0
    for placed in pieces:
        batch.append(placed)
        characters += len(placed.piece.text)
        if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_PIECES:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
