"""Windows of one length over a split, as a dataset for torch."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from rebased.corpora.packing import Packing, pack
from rebased.corpora.split import Split

__all__ = ["IGNORED", "Part", "Windows", "spread"]

IGNORED = -100
"""The label of a position that no loss counts, as transformers has it."""


class Part(NamedTuple):
    """What a window has of a document."""

    document: int
    start: int
    """Within the window."""
    stop: int


class Windows(Dataset[dict[str, Tensor]]):
    """Windows of ``length`` tokens. Labels are the tokens themselves: causal models of transformers shift them.

    With ``crossing``, windows are cut from the stream of tokens, whatever documents begin or end in them: window i has
    the tokens ``i * length`` to ``(i + 1) * length`` as ``input_ids``, and as ``labels``, of which the first is -100. A
    rest that fills no window is left out. ValueError for a split with too few tokens for one window; an empty split has
    no windows.

    Without it, whole documents are packed into windows; one longer than a window is cut into pieces of its length.
    ``position_ids`` begin at 0 with each document or piece. ``labels`` are -100 where a document or piece begins, and
    where the window is empty. There ``input_ids`` is end-of-text, with positions of its own.
    """

    def __init__(self, split: Split, length: int, *, crossing: bool = True) -> None:
        if length < 1:
            raise ValueError(f"length={length} must be positive")
        if crossing and 0 < split.num_tokens < length:
            raise ValueError(
                f"{split.name} has {split.num_tokens} tokens, no window of length={length}; a length up to "
                f"{split.num_tokens} would do, or crossing=False, which pads"
            )
        self.split = split
        self.length = length
        self.crossing = crossing
        self._packing: Packing | None = None if crossing else pack(split.documents.ends, length)
        self._num_windows = split.num_tokens // length if self._packing is None else self._packing.num_windows

    def __len__(self) -> int:
        return self._num_windows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        index = self._checked(index)
        if self._packing is None:
            tokens = torch.from_numpy(self.split.tokens(index * self.length, (index + 1) * self.length))
            labels = tokens.clone()
            labels[0] = IGNORED
            return {"input_ids": tokens, "labels": labels}
        return self._packed(index, self._packing)

    def source(self, index: int) -> list[Part]:
        """Which documents a window holds, and where. What lies in none of them is padding."""
        index = self._checked(index)
        if self._packing is not None:
            return _parts(index, self._packing)
        ends = self.split.documents.ends
        start, stop = index * self.length, (index + 1) * self.length
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop, side="left"))
        borders = [start, *ends[first:last].tolist(), stop]
        return [Part(first + i, borders[i] - start, borders[i + 1] - start) for i in range(len(borders) - 1)]

    def _checked(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index={index} is outside of {len(self)} windows")
        return int(index) % len(self)

    def _packed(self, index: int, packing: Packing) -> dict[str, Tensor]:
        tokens = np.full(self.length, self.split.end_of_text, dtype=np.int64)
        positions = np.empty(self.length, dtype=np.int64)
        labels = np.full(self.length, IGNORED, dtype=np.int64)
        filled = 0
        first = int(packing.borders[index])
        for piece, (_, start, stop) in enumerate(_parts(index, packing), first):
            at = int(packing.starts[piece])
            tokens[start:stop] = self.split.tokens(at, at + stop - start)
            labels[start + 1 : stop] = tokens[start + 1 : stop]
            positions[start:stop] = np.arange(stop - start)
            filled = stop
        positions[filled:] = np.arange(self.length - filled)
        columns = {"input_ids": tokens, "position_ids": positions, "labels": labels}
        return {name: torch.from_numpy(column) for name, column in columns.items()}


def spread(num_windows: int, most: int | None) -> list[int]:
    """Which windows represent all, evenly spread: neighbours often belong to one document set."""
    if most is None or most >= num_windows:
        return list(range(num_windows))
    return [index * num_windows // most for index in range(most)]


def _parts(index: int, packing: Packing) -> list[Part]:
    pieces = slice(int(packing.borders[index]), int(packing.borders[index + 1]))
    stops = np.cumsum(packing.lengths[pieces]).tolist()
    documents = packing.documents[pieces].tolist()
    return [Part(*part) for part in zip(documents, [0, *stops[:-1]], stops, strict=True)]
