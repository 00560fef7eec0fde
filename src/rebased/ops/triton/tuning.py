"""Sizes of tiles and chunks, and how many warps share a tile."""

from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class Launch:
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Tuning:
    """Powers of two; a chunk is a multiple of a tile, a segment of a chunk."""

    chunk: int
    """Tokens between two stored states."""
    tile: int
    """Rows that a program works on at a time."""
    columns: int
    """Keys (for gradients of keys: queries) that it meets at a time."""
    num_i: int
    """Of the features x_i·x_j, the number of values of i at a time."""
    states_num_i: int
    programs: int
    """How many programs the sums are to be spread over, if there is work for as many."""
    states: Launch
    forward: Launch
    query_grads: Launch
    key_grads: Launch


@lru_cache
def tuning(dtype: torch.dtype, feature_dim: int, head_dim: int) -> Tuning:
    """For padded sizes."""
    is_half = dtype == torch.bfloat16
    num_i = max(1, (128 if is_half else 64) // feature_dim)
    return Tuning(
        chunk=256,
        tile=64,
        columns=64,
        num_i=num_i,
        states_num_i=num_i,
        programs=528,
        states=Launch(4, 3 if is_half else 2),
        forward=Launch(4, 2),
        query_grads=Launch(4, 2),
        key_grads=Launch(4, 2),
    )
