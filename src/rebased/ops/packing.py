"""Packed sequences as a few batches of about equal length.

Sequences are grouped by their number of keys and of queries, each rounded up to a power of two, and padded to the
longest of their group: at most a factor of two is wasted in either, however uneven the lengths, and there are few
groups. Each sequence is a row of a batch of its own, so nothing that one holds, NaN included, can reach another.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """Sequences that are computed together. Places beyond a sequence's end point at row 0 and are masked."""

    sequences: Int[Tensor, " N"]
    keys: Int[Tensor, "N S"]
    is_key: Bool[Tensor, "N S"]
    queries: Int[Tensor, "N R"]
    is_query: Bool[Tensor, "N R"]
    at: Int[Tensor, "N R"] | None
    """Positions of the queries within their own sequence, if not all positions are queried."""

    def pick_queries(self, x: Shaped[Tensor, "1 P H W"], *, fill: float = 0.0) -> Shaped[Tensor, "N R H W"]:
        """The group's rows of x; ``fill`` in places that hold no query, for row 0 may hold NaN."""
        return x[0, self.queries].where(self.is_query[..., None, None], fill)


def group_sequences(cu_seqlens: Int[Tensor, " N1"], at: Int[Tensor, " P"] | None) -> list[Group]:
    """Groups that together hold every non-empty sequence, each once."""
    device = cu_seqlens.device
    starts = cu_seqlens[:-1]
    lengths = cu_seqlens.diff()
    order = None
    if at is None:
        query_starts, query_counts = starts, lengths
    else:
        owner = torch.searchsorted(cu_seqlens, at, right=True) - 1  # the last of equal borders: skips empty sequences
        order = owner.argsort(stable=True)
        query_counts = torch.bincount(owner, minlength=lengths.numel())
        query_starts = query_counts.cumsum(0) - query_counts
    members = defaultdict(list)
    for index, (length, count) in enumerate(zip(lengths.tolist(), query_counts.tolist(), strict=True)):
        if length:
            members[length.bit_length(), count.bit_length()].append(index)
    groups = []
    for indices in members.values():
        sequences = torch.tensor(indices, device=device)
        keys, is_key = _ranges(starts[sequences], lengths[sequences])
        queries, is_query = _ranges(query_starts[sequences], query_counts[sequences])
        local = None
        if at is not None and order is not None:
            queries = order[queries] if order.numel() else queries
            local = (at[queries] if at.numel() else queries) - starts[sequences, None]
            local = local.where(is_query, 0)
        groups.append(Group(sequences, keys, is_key, queries, is_query, local))
    return groups


def _ranges(starts: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Rows start, start + 1, … of each count, padded with 0 to the longest, and which places are real."""
    offsets = torch.arange(int(counts.max()), device=starts.device)
    real = offsets < counts[:, None]
    return (starts[:, None] + offsets).where(real, 0), real
