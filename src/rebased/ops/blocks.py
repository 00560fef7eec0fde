"""How a problem is cut: chunks of keys, blocks of chunks, and the queries that meet a block."""

import math
from dataclasses import dataclass

from rebased.ops.problem import Part, Problem
from rebased.ops.tiles import DenseTiles, Tiles, gather_tiles

FEATURES_PER_BLOCK = {"cpu": 1 << 21, "cuda": 1 << 26}
"""How many numbers the features or scores of a block may be: about a last-level cache on a CPU, many small launches'
worth on a GPU."""

MAX_DIRECT_KEYS = 4096
"""More in one sum would cost digits: a running state is a sum of sums."""


def is_direct(p: Problem) -> bool:
    """Whether so few queries are asked for that their scores with all keys cost less than a state made of the keys."""
    _, _, E, D1 = p.sums_shape
    is_possible = p.at is not None and p.causal and p.state is None
    return is_possible and pays_directly(p.group * p.q.shape[1], p.k.shape[1], p.q.shape[3], E, D1)


def pays_directly(num_queries: int, num_keys: int, feature_dim: int, num_features: int, width: int) -> bool:
    """For each key: a product with every query and of every weight with its value, or one of its features with it."""
    return num_keys <= MAX_DIRECT_KEYS and num_queries * (feature_dim + width) <= num_features * width


def preferred_chunk_size(p: Problem) -> int:
    """The power of two nearest √(E·D), within 32 .. 256; all keys where queries are few.

    Inside a chunk each token pays for C scores; between chunks it pays its share of a state, E·D / C. Timed on a CPU
    for E from 16 to 528 and D from 2 to 64, this was the fastest size or next to it.
    """
    _, _, E, D1 = p.sums_shape
    if is_direct(p):
        return max(p.k.shape[1], 1)
    return min(max(2 ** round(math.log2(E * D1) / 2), 32), 256)


def parts(p: Problem) -> list[Part]:
    """Sequences and heads few enough that one chunk of each fits the budget: large batches go part by part."""
    (B, _, Hk, _), G = p.k.shape, p.group
    num_rows = p.q.shape[1] if is_direct(p) else min(preferred_chunk_size(p), max(p.k.shape[1], 1))
    per_head = max(_columns(p) * num_rows * G, 1)
    num_heads = min(max(_budget(p) // per_head, 1), Hk)
    num_sequences = max(_budget(p) // (per_head * Hk), 1)
    return [
        Part(slice(b, b + num_sequences), slice(h, h + num_heads), slice(h * G, (h + num_heads) * G))
        for b in range(0, B, num_sequences)
        for h in range(0, Hk, num_heads)
    ]


@dataclass(frozen=True)
class Block:
    """Neighbouring chunks of keys, from ``start`` on; ``is_last``: no key comes after them."""

    start: int
    num_chunks: int
    chunk_size: int
    is_last: bool


def all_through_state(p: Problem) -> bool:
    """Without a causal mask, keys beyond a chunk are all summed first and queries meet nothing but the sum."""
    return not p.causal and p.k.shape[1] > preferred_chunk_size(p)


def key_blocks(p: Problem) -> list[Block]:
    """Whole chunks, several to a block, then what is left over as a block of one shorter chunk."""
    T, chunk_size = p.k.shape[1], preferred_chunk_size(p)
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
    return _budget(p) // (p.q.shape[0] * p.q.shape[2] * _columns(p))


def tiles_of(p: Problem, block: Block) -> Tiles | None:
    if not p.causal:  # one chunk holds all keys, so every query meets it
        return DenseTiles(0, 1, p.q.shape[1], p.q.device) if p.q.shape[1] else None
    if p.at is not None:
        return gather_tiles(p.at, block.start, block.num_chunks, block.chunk_size, _rows_per_tile(p, block))
    return DenseTiles(block.start, block.num_chunks, block.chunk_size, p.q.device)


def _rows_per_tile(p: Problem, block: Block) -> int:
    """Of gathered tiles: about as many queries as a chunk has.

    A tile reads one state of E·D numbers, a cost that its rows share; rows without a query waste the products.
    """
    if is_direct(p):
        return p.q.shape[1]
    queries_per_chunk = p.q.shape[1] * block.chunk_size // p.k.shape[1]
    return 1 << min(max(queries_per_chunk.bit_length(), 5), 12)


def _columns(p: Problem) -> int:
    """The numbers a query needs at a time: its features, or its scores within a chunk."""
    return max(p.sums_shape[2], preferred_chunk_size(p))


def _budget(p: Problem) -> int:
    return FEATURES_PER_BLOCK.get(p.q.device.type, FEATURES_PER_BLOCK["cuda"])
