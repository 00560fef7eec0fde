"""Where tokens stand in their own sequence, with packing, masks and earlier tokens taken into account."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def sequence_of(cu_seqlens: Int[Tensor, " N1"], places: Int[Tensor, "*P"]) -> Int[Tensor, "*P"]:
    """Which packed sequence each place of the row belongs to."""
    # Adding zeros makes the two alike under vmap, whose own expansion of one would be slow, and warn so.
    return torch.searchsorted(cu_seqlens, places + torch.zeros_like(cu_seqlens[:1]), right=True) - 1


def count_sequences(like: Tensor, cu_seqlens: Int[Tensor, " N1"] | None) -> int:
    """How many sequences there are: those of a batch ``like`` (B, …), or those that are packed in its row."""
    return like.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def token_counts(
    key_mask: Bool[Tensor, "B T"] | None, cu_seqlens: Int[Tensor, " N1"] | None, like: Tensor
) -> Int[Tensor, " N"]:
    """The number of real tokens of each sequence of a row or batch ``like`` (B, T, …)."""
    B, T = like.shape[:2]
    if cu_seqlens is None:
        if key_mask is None:
            return torch.full((B,), T, dtype=torch.int64, device=like.device)
        return key_mask.sum(dim=1)
    if key_mask is None:
        return cu_seqlens.diff()
    return _sums_before(key_mask)[cu_seqlens].diff()


def token_positions(
    key_mask: Bool[Tensor, "B T"] | None,
    cu_seqlens: Int[Tensor, " N1"] | None,
    count: Int[Tensor, " N"] | None,
    like: Tensor,
) -> Int[Tensor, "B T"]:
    """The number of real tokens before each one in its sequence, those of an earlier state's ``count`` included.

    Masked tokens do not count, so padding moves nothing; one that follows a real token stands where that one does.
    """
    B, T = like.shape[:2]
    places = torch.arange(T, device=like.device).expand(B, T)
    before = places if key_mask is None else key_mask.cumsum(dim=1) - key_mask.to(torch.int64)
    if cu_seqlens is not None:
        owner = sequence_of(cu_seqlens, places[0])
        starts = cu_seqlens[:-1][owner]
        before = before - (starts if key_mask is None else _sums_before(key_mask)[starts])
        count = None if count is None else count[owner]
    elif count is not None:
        count = count[:, None]
    if count is not None:
        before = before + count
    return before if key_mask is None else (before - (~key_mask).to(torch.int64)).clamp(min=0)


def _sums_before(key_mask: Bool[Tensor, "1 T"]) -> Int[Tensor, " T1"]:
    """The number of real tokens before each place of a packed row, its end included."""
    return torch.nn.functional.pad(key_mask[0].cumsum(dim=0), (1, 0))
