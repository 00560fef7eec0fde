"""How the queries of a block of key chunks are laid out: as tiles of rows that share one chunk.

A block is ``num_chunks`` neighbouring chunks of ``chunk_size`` keys of every sequence, numbered (b, chunk). Queries
come in tiles of ``num_rows``; all rows of a tile sit in the same chunk, so that a tile meets one prefix state and one
chunk of keys in matrix products. Where every position is queried the tiles are the chunks (`DenseTiles`); with
``at``, queries are sorted into as many tiles as they need (`GatheredTiles`), and chunks without queries have none.

Both kinds load the queries' rows of a tensor (B, P, H, W) as (X, rows, H, W), where rows without a query hold ``fill``;
store such rows back; and tell which keys of its own chunk a row sees, (#X, rows, C). ``chunk_of_tile`` says to which
(b, chunk) of the block each tile belongs; ``None``: tile i to chunk i.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rebased.replay import is_recorded


@dataclass(frozen=True)
class DenseTiles:
    """Every position of ``start .. start + num_chunks · chunk_size`` is a query."""

    start: int
    num_chunks: int
    chunk_size: int
    device: torch.device
    chunk_of_tile: None = None

    def load(self, x: Tensor, *, fill: float = 0.0) -> Tensor:
        rows = x.narrow(1, self.start, self.num_chunks * self.chunk_size)
        return rows.unflatten(1, (self.num_chunks, self.chunk_size)).flatten(0, 1)

    def store(self, rows: Tensor, out: Tensor) -> None:
        places = out.narrow(1, self.start, self.num_chunks * self.chunk_size)
        places.unflatten(1, (self.num_chunks, self.chunk_size)).copy_(rows.unflatten(0, (-1, self.num_chunks)))

    def visible(self, chunk_size: int) -> Bool[Tensor, "#X rows C"]:
        return torch.ones(1, chunk_size, chunk_size, dtype=torch.bool, device=self.device).tril()


@dataclass(frozen=True)
class GatheredTiles:
    """Queries at given positions, of which the block's are picked; built by `gather_tiles`."""

    batch: Int[Tensor, " N"]
    query: Int[Tensor, " N"]
    is_inside: Bool[Tensor, " N"] | None
    """Whether the block has the query; those that it has not are in the last tile. ``None``: it has all of these."""
    tile: Int[Tensor, " N"]
    row: Int[Tensor, " N"]
    chunk_of_tile: Int[Tensor, " X"]
    position: Int[Tensor, "X rows"]
    """Of each row within its chunk; -1 where a row holds no query."""

    def load(self, x: Tensor, *, fill: float = 0.0) -> Tensor:
        rows = x.new_full((*self.position.shape, *x.shape[2:]), fill)
        rows[self.tile, self.row] = x[self.batch, self.query]
        if self.is_inside is not None:
            rows[-1] = fill
        return rows

    def store(self, rows: Tensor, out: Tensor) -> None:
        found = rows[self.tile, self.row]
        if self.is_inside is not None:
            found = torch.where(self.is_inside[:, None, None], found, out[self.batch, self.query])
        out[self.batch, self.query] = found

    def visible(self, chunk_size: int) -> Bool[Tensor, "#X rows C"]:
        return torch.arange(chunk_size, device=self.position.device) <= self.position[..., None]


Tiles = DenseTiles | GatheredTiles


def gather_tiles(
    at: Int[Tensor, "B P"], start: int, num_chunks: int, chunk_size: int, num_rows: int
) -> GatheredTiles | None:
    """Sort the queries that fall in a block into tiles of ``num_rows``; ``None`` if there are none.

    While a CUDA graph is recorded nobody can say how many these are. Then all queries are sorted, and there are as many
    tiles as they could need, and one more.
    """
    asks = not is_recorded(at)
    inside = (at >= start) & (at < start + num_chunks * chunk_size)
    every = torch.arange(at.numel(), device=at.device)
    batch, query = inside.nonzero(as_tuple=True) if asks else (every // at.shape[1], every % at.shape[1])
    if batch.numel() == 0:
        return None
    offset = at[batch, query] - start
    beyond = at.shape[0] * num_chunks
    chunk = (batch * num_chunks + offset // chunk_size).where(inside[batch, query], beyond)
    chunk, order = chunk.sort(stable=True)
    borders = torch.searchsorted(chunk, torch.arange(beyond + 1, device=at.device))
    rank = torch.arange(chunk.numel(), device=at.device) - borders[chunk]
    tiles_before = torch.nn.functional.pad(((borders.diff() + num_rows - 1) // num_rows).cumsum(0), (1, 0))
    most = min(beyond, chunk.numel()) + chunk.numel() // num_rows + 1  # a chunk's last tile may have fewer rows
    num_tiles = int(tiles_before[-1]) if asks else most
    is_inside = None if asks else chunk < beyond
    tile, row = tiles_before[chunk] + rank // num_rows, rank % num_rows
    if is_inside is not None:
        tile, row = tile.where(is_inside, num_tiles - 1), row.where(is_inside, 0)
    index = torch.arange(num_tiles, device=at.device)
    chunk_of_tile = torch.searchsorted(tiles_before[1:], index, right=True).clamp(max=beyond - 1)
    position = at.new_full((num_tiles, num_rows), -1)
    position[tile, row] = offset[order] % chunk_size
    if is_inside is not None:
        position[-1] = -1
    return GatheredTiles(batch[order], query[order], is_inside, tile, row, chunk_of_tile, position)
