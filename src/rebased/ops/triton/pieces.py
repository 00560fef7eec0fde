"""How rows are cut into pieces, one for each program, where sequences are not all of one length.

Everything is computed on the device, without asking it how long anything is: a table has room for the most pieces
there can be, and those left over are empty.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor


def cut(borders: Int[Tensor, " N1"], length: int, max_pieces: int) -> tuple[Tensor, Tensor, Tensor]:
    """Owner, first and last row of each piece of at most ``length`` rows."""
    counts = (borders.diff() + length - 1) // length
    first_piece = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    index = torch.arange(max_pieces, device=borders.device)
    owner = torch.searchsorted(first_piece[1:], index, right=True).clamp_(max=counts.numel() - 1)
    start = borders[owner] + (index - first_piece[owner]) * length
    end = torch.minimum(start + length, borders[owner + 1])
    is_piece = index < first_piece[-1]
    return owner, start.where(is_piece, 0), end.where(is_piece, 0)


@dataclass(frozen=True)
class Pieces:
    """Pieces of equal length of every sequence, as `rebased.ops.triton.tiles.locate` reads them."""

    count: int
    per_row: int
    """Where there is no table; else ``count``."""
    table: Int[Tensor, "pieces 7"] | None
    borders: Int[Tensor, " N1"] | None
    """Of what the pieces were cut from, where there is a table."""


def even_pieces(num_rows: int, row_length: int, length: int) -> Pieces:
    """Of sequences that all have one length."""
    per_row = -(-row_length // length)
    return Pieces(num_rows * per_row, per_row, None, None)


def packed_pieces(borders: Int[Tensor, " N1"], num_tokens: int, length: int, chunk: int) -> Pieces:
    """Of packed sequences; ``length`` is a multiple of ``chunk`` or a divisor of it."""
    num_sequences = borders.shape[0] - 1
    count = num_tokens // length + num_sequences
    owner, start, end = cut(borders, length, count)
    chunks = (borders.diff() + chunk - 1) // chunk
    first_chunk = chunks.cumsum(0) - chunks
    inside = start - borders[owner]
    chunk_index, chunk_start = first_chunk[owner] + inside // chunk, start - inside % chunk
    columns = [owner, start, end, chunk_index, chunk_start, borders[owner], borders[owner + 1]]
    return Pieces(count, count, torch.stack(columns, dim=1).int(), borders)


@dataclass(frozen=True)
class Gathered:
    """Queries at given positions, sorted by chunk."""

    order: Int[Tensor, " BP"]
    """Row of each sorted query within its batch row."""
    positions: Int[Tensor, " BP"]
    borders: Int[Tensor, " chunks1"]
    """Which sorted queries belong to which chunk."""
    chunks: Int[Tensor, "4 chunks"]
    """Sequence, first position, and where the sequence starts and ends."""

    def pieces(self, length: int) -> Pieces:
        """The queries of each chunk, at most ``length`` at a time."""
        count = self.order.numel() // length + self.chunks.shape[1]
        owner, start, end = cut(self.borders, length, count)
        sequence, chunk_start, sequence_start, sequence_end = self.chunks[:, owner]
        columns = [sequence, start, end, owner, chunk_start, sequence_start, sequence_end]
        return Pieces(count, count, torch.stack(columns, dim=1).int(), self.borders)


def gather_queries(at: Int[Tensor, "B P"], chunks: Int[Tensor, "4 chunks"]) -> Gathered:
    """Sort queries into the chunks, which come in the order of batch rows and positions.

    Chunks that do not exist start beyond the last position.
    """
    B, P = at.shape
    positions, order = at.sort(dim=1, stable=True)
    starts = chunks[1].reshape(B, -1).to(positions.dtype)
    borders = torch.searchsorted(positions, starts) + torch.arange(B, device=at.device)[:, None] * P
    borders = torch.cat([borders.flatten(), borders.new_full((1,), B * P)])
    return Gathered(order.flatten().int(), positions.flatten().int(), borders.int(), chunks)


def even_chunks(num_rows: int, row_length: int, chunk: int, device: torch.device) -> Int[Tensor, "4 chunks"]:
    """Sequence, first position and the sequence's borders of each chunk, where all sequences have one length."""
    starts = torch.arange(0, row_length, chunk, device=device)
    rows = torch.arange(num_rows, device=device).repeat_interleave(starts.numel())
    return torch.stack([rows, starts.repeat(num_rows), torch.zeros_like(rows), torch.full_like(rows, row_length)])


def packed_chunks(pieces: Pieces, num_tokens: int) -> Int[Tensor, "4 chunks"]:
    """The same of packed sequences, given their pieces of a chunk's length."""
    assert pieces.table is not None
    sequence, start, end, _, _, sequence_start, sequence_end = pieces.table.long().unbind(dim=1)
    return torch.stack([sequence, start.where(end > start, num_tokens), sequence_start, sequence_end])


def whole_sequences(borders: Int[Tensor, " N1"]) -> Int[Tensor, "4 N"]:
    """The same where each packed sequence is one chunk."""
    index = torch.arange(borders.shape[0] - 1, device=borders.device)
    return torch.stack([index, borders[:-1], borders[:-1], borders[1:]])
