"""Tiles small enough for Triton's interpreter, which runs one program after another."""

from collections.abc import Iterator

import pytest
import torch

from rebased.ops.triton import plan
from rebased.ops.triton.tuning import Tile, Tuning


def small_tiles(dtype: torch.dtype, feature_dim: int, head_dim: int) -> Tuning:
    """Many chunks and segments in a short sequence, and few programs: the interpreter runs one after another."""
    tile = Tile(rows=16, columns=16, num_i=feature_dim, num_warps=4, num_stages=2)
    return Tuning(
        chunk=32,
        enough_programs=6,
        wanted_programs=6,
        states=tile,
        forward=tile,
        query_grads=tile,
        key_grads=tile,
        few_queries=64,
        few_queries_grads=tile,
    )


@pytest.fixture
def interpretable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sizes that the interpreter gets through, in which every path is taken all the same."""
    monkeypatch.setattr(plan, "tuning", small_tiles)
    plan._make_plan.cache_clear()
    yield
    plan._make_plan.cache_clear()
