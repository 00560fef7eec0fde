"""Sizes of tiles and chunks, and how many warps share a tile."""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import triton


@dataclass(frozen=True)
class Tile:
    """How a kernel works through its rows; sizes are powers of two."""

    rows: int
    """Queries, or keys where their gradients are computed, that a program has at a time; a divisor of the chunk."""
    columns: int
    """What they meet at a time; a divisor of ``rows``, or where queries are few, of the chunk."""
    num_i: int
    """Of the features x_i·x_j, the number of values of i at a time."""
    num_warps: int
    num_stages: int
    max_registers: int | None = None
    """Per thread: fewer let more programs share a multiprocessor."""


@dataclass(frozen=True)
class Tuning:
    chunk: int
    """Tokens between two stored states; a power of two."""
    enough_programs: int
    """With as many, sums walk each sequence once, from end to end."""
    wanted_programs: int
    """Else sequences are cut into segments, to have as many; keys then have two states to multiply with, not one."""
    states: Tile
    forward: Tile
    query_grads: Tile
    key_grads: Tile
    few_queries: int
    """Up to so many, one program has all of a head and makes all gradients."""
    few_queries_grads: Tile
    segmented_key_grads: Tile | None = None
    """Where sequences are cut into segments, if not the same."""


@lru_cache
def tuning(dtype: torch.dtype, feature_dim: int, head_dim: int) -> Tuning:
    """For padded sizes."""
    is_half = dtype == torch.bfloat16
    num_i = max(1, (128 if is_half else 64) // feature_dim)
    tile = Tile(rows=64, columns=64, num_i=num_i, num_warps=4, num_stages=2)
    if is_half and head_dim == 16 and feature_dim == 16:
        # A product with 16 columns is too small to share: a warp for itself needs a third fewer instructions.
        tile = Tile(rows=64, columns=32, num_i=16, num_warps=1, num_stages=3)
        return Tuning(
            chunk=128,
            enough_programs=264,
            wanted_programs=1056,
            states=replace(tile, rows=32, num_i=8),
            forward=replace(tile, num_warps=2),
            query_grads=tile,
            key_grads=tile,
            few_queries=64,
            few_queries_grads=tile,
            # The second state of a segment does not fit into one warp's registers: 3.9 ms instead of 0.74.
            segmented_key_grads=replace(tile, num_i=8, num_warps=4, num_stages=2, max_registers=128),
        )
    narrow = head_dim <= 32
    return Tuning(
        chunk=128 if narrow else 256,
        enough_programs=264,
        wanted_programs=1056,
        states=replace(tile, num_stages=3 if is_half else 2),
        forward=replace(tile, num_stages=1 if narrow else 2),
        query_grads=replace(tile, num_stages=3 if is_half else 2),
        key_grads=replace(tile, columns=32, num_stages=3 if is_half and head_dim == 64 else 2),
        # A float32 product is made of three, and its operands fill the registers.
        few_queries=64 if is_half else 32 if feature_dim <= 16 and head_dim <= 64 else 0,
        few_queries_grads=tile,
    )


def for_few_queries(base: Tuning, num_queries: int, num_keys: int) -> Tuning:
    """All keys are one chunk: there are no states, and tiles are as high as the queries are many."""
    height = max(16, triton.next_power_of_2(num_queries))
    rows = min(base.forward.rows, height)
    few_queries_grads = replace(base.few_queries_grads, rows=height)
    if height <= 32 and few_queries_grads.num_warps == 1:  # small tiles leave registers for more programs
        few_queries_grads = replace(few_queries_grads, max_registers=128)
    return replace(
        base,
        chunk=max(base.chunk, triton.next_power_of_2(num_keys)),
        forward=replace(base.forward, rows=rows, columns=min(base.forward.columns, rows)),
        query_grads=replace(base.query_grads, rows=rows, columns=min(base.query_grads.columns, rows)),
        few_queries_grads=few_queries_grads,
    )
