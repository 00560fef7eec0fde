"""vmap of ``rebased::attend``: the mapped axis joins the batch, or the row of packed sequences.

More than `join_replicas` does: in a row, borders and positions move along.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rebased.ops.arguments import Arguments
from rebased.ops.replicas import stacked


class Fold:
    """Turns ``size`` mapped calls into one; ``size`` may be 0, so no length can be inferred from the others."""

    def __init__(self, size: int, a: Arguments, dims: Sequence[int | None]) -> None:
        """``dims``: the mapped axis of each argument, ``None`` where it has none."""
        self.size = size
        self.packed = a.cu_seqlens is not None
        self._dims = dict(zip(Arguments._fields, dims, strict=True))
        self.batch_size, self.num_queries = _shape(a.q, self._dims["q"])[:2]
        self.seq_len = _shape(a.k, self._dims["k"])[1]
        self.num_sequences = self.batch_size
        if a.cu_seqlens is not None:
            self.num_sequences = _shape(a.cu_seqlens, self._dims["cu_seqlens"])[0] - 1

    def arguments(self, a: Arguments) -> Arguments:
        """All calls' arguments as one call's."""

        def fold(name: str, how: Callable[[Tensor, int | None], Tensor]) -> Any:
            x = getattr(a, name)
            return None if x is None else how(x, self._dims[name])

        return a._replace(
            q=fold("q", self.rows),
            k=fold("k", self.rows),
            v=fold("v", self.rows),
            coefficients=fold("coefficients", self.sequences),
            key_mask=fold("key_mask", self.rows),
            state_values=fold("state_values", self.sequences),
            state_normalizer=fold("state_normalizer", self.sequences),
            cu_seqlens=fold("cu_seqlens", self._borders),
            at=fold("at", self._positions),
        )

    def rows(self, x: Tensor, dim: int | None) -> Tensor:
        """For what has (B, T or P, …): packed rows are strung together in time."""
        x = stacked(x, dim, self.size)
        return x.flatten(0, 2)[None] if self.packed else x.flatten(0, 1)

    def sequences(self, x: Tensor, dim: int | None) -> Tensor:
        """For what has one entry a sequence."""
        return stacked(x, dim, self.size).flatten(0, 1)

    def unrow_queries(self, x: Tensor) -> Tensor:
        return self._unrow(x, self.num_queries)

    def unrow_keys(self, x: Tensor) -> Tensor:
        return self._unrow(x, self.seq_len)

    def unsequence(self, x: Tensor) -> Tensor:
        return x.unflatten(0, (self.size, self.num_sequences))

    def _positions(self, x: Tensor, dim: int | None) -> Tensor:
        x = stacked(x, dim, self.size)
        if self.packed:
            x = x + self._offsets(x)[:, None, None]
        return self.rows(x, 0)

    def _borders(self, x: Tensor, dim: int | None) -> Tensor:
        x = stacked(x, dim, self.size)
        starts = (x[:, :-1] + self._offsets(x)[:, None]).flatten()
        return torch.cat([starts, starts.new_full((1,), self.size * self.seq_len)])

    def _unrow(self, x: Tensor, length: int) -> Tensor:
        if self.packed:
            return x[0].unflatten(0, (self.size, length))[:, None]
        return x.unflatten(0, (self.size, self.batch_size))

    def _offsets(self, like: Tensor) -> Tensor:
        return torch.arange(self.size, device=like.device, dtype=like.dtype) * self.seq_len


def _shape(x: Tensor, dim: int | None) -> tuple[int, ...]:
    """Of one mapped call's x."""
    return tuple(size for axis, size in enumerate(x.shape) if axis != dim)
