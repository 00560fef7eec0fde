"""How a problem is cut: chunks of keys, blocks of chunks, and the queries that meet a block."""

from dataclasses import dataclass

from rebased.ops.problem import Problem
from rebased.ops.tiles import DenseTiles, Tiles, gather_tiles

FEATURES_PER_BLOCK = {"cpu": 1 << 21, "cuda": 1 << 26}
"""How many numbers the features of a block may be: about a last-level cache on a CPU, many small launches' worth on
a GPU."""


def preferred_chunk_size(num_features: int) -> int:
    """Work per token is C·(F + D) inside a chunk and E·D through the state: level where C is near E."""
    return min(max(1 << (num_features.bit_length() - 1), 64), 512)


def batch_parts(p: Problem) -> list[slice]:
    """Sequences few enough that one chunk of each fits the budget; a large batch is handled part by part."""
    B, T, E = p.k.shape[0], p.k.shape[1], p.state_shape[2]
    chunk_size = min(preferred_chunk_size(E), max(T, 1))
    size = _budget(p) // (p.q.shape[2] * E * chunk_size) or 1
    return [slice(start, min(start + size, B)) for start in range(0, B, size)]


@dataclass(frozen=True)
class Block:
    start: int
    num_chunks: int
    chunk_size: int
    is_last: bool


def all_through_state(p: Problem) -> bool:
    """Without a causal mask, keys beyond a chunk are all summed first and queries meet nothing but the sum."""
    return not p.causal and p.k.shape[1] > preferred_chunk_size(p.state_shape[2])


def key_blocks(p: Problem) -> list[Block]:
    """Whole chunks, several to a block, then what is left over as a block of one shorter chunk."""
    T, chunk_size = p.k.shape[1], preferred_chunk_size(p.state_shape[2])
    chunks_per_block = rows_per_block(p) // chunk_size or 1
    blocks: list[Block] = []
    start = 0
    while start < T:
        num_chunks = min((T - start) // chunk_size, chunks_per_block)
        size = chunk_size if num_chunks else T - start
        num_chunks = num_chunks or 1
        end = start + num_chunks * size
        blocks.append(Block(start, num_chunks, size, is_last=end == T))
        start = end
    return blocks


def query_blocks(p: Problem) -> list[Tiles]:
    P = p.q.shape[1]
    size = rows_per_block(p) or 1
    return [DenseTiles(start, 1, min(size, P - start), p.q.device) for start in range(0, P, size)]


def rows_per_block(p: Problem) -> int:
    return _budget(p) // (p.q.shape[0] * p.q.shape[2] * p.state_shape[2])


def tiles_of(p: Problem, block: Block) -> Tiles | None:
    if not p.causal:  # one chunk holds all keys, so every query meets it
        return DenseTiles(0, 1, p.q.shape[1], p.q.device) if p.q.shape[1] else None
    if p.at is not None:
        return gather_tiles(p.at, block.start, block.num_chunks, block.chunk_size)
    return DenseTiles(block.start, block.num_chunks, block.chunk_size, p.q.device)


def _budget(p: Problem) -> int:
    return FEATURES_PER_BLOCK.get(p.q.device.type, FEATURES_PER_BLOCK["cuda"])
