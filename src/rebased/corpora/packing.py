"""Whole documents in windows of one length, with little room left empty."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Packing", "pack"]

_BUFFER = 2**16
"""Pieces that are packed together: it bounds how far a document moves from its neighbours."""


@dataclass(frozen=True)
class Packing:
    """Pieces of documents, window after window."""

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    """In the stream of tokens."""
    lengths: NDArray[np.int64]
    borders: NDArray[np.int64]
    """Window i has the pieces ``borders[i]`` to ``borders[i + 1]``."""

    @property
    def num_windows(self) -> int:
        return len(self.borders) - 1


def pack(ends: NDArray[np.int64], window: int) -> Packing:
    """Documents that end at ``ends`` of a stream, in windows of that length: best fit, the longest first.

    A document longer than a window is cut into pieces of a window each and a rest. Pieces and windows stand in the
    order of their (first) documents.
    """
    begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)]
    num_pieces = -((begins - ends) // window)
    documents = np.repeat(np.arange(len(ends)), num_pieces)
    number = np.arange(len(documents)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
    starts = begins[documents] + number * window
    lengths = np.minimum(ends[documents] - starts, window)

    owners = np.empty(len(documents), dtype=np.int64)
    num_windows = 0
    for first in range(0, len(documents), _BUFFER):
        chosen = _best_fit(lengths[first : first + _BUFFER].tolist(), window)
        # np.unique gives each window's first piece, and windows are numbered by these.
        _, first_pieces, inverse = np.unique(chosen, return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first_pieces))
        owners[first : first + _BUFFER] = rank[inverse] + num_windows
        num_windows += len(first_pieces)
    order = np.argsort(owners, kind="stable")
    borders = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=num_windows))]).astype(np.int64)
    return Packing(documents[order], starts[order], lengths[order], borders)


def _best_fit(lengths: list[int], window: int) -> list[int]:
    """A window for each piece: of those that have room enough, the one with the least."""
    owners = [0] * len(lengths)
    windows_by_room: dict[int, list[int]] = {}
    rooms = 0  # bit r is set if some window has room for r more: shifting finds the least room that suffices
    num_windows = 0
    for piece in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[piece]
        sufficient = rooms >> length
        if sufficient:
            room = length + (sufficient & -sufficient).bit_length() - 1
            owner = windows_by_room[room].pop()
            if not windows_by_room[room]:
                rooms ^= 1 << room
        else:
            room, owner = window, num_windows
            num_windows += 1
        owners[piece] = owner
        if room > length:
            windows_by_room.setdefault(room - length, []).append(owner)
            rooms |= 1 << (room - length)
    return owners
