"""Packed sequences, as position ids tell of them."""

import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["borders_of"]


@torch.compiler.disable(  # type: ignore[untyped-decorator]
    reason="how many sequences there are is known only from the numbers themselves"
)
def borders_of(position_ids: Int[Tensor, "#B T"], tokens: Int[Tensor, "B T"]) -> Int[Tensor, " N1"] | None:
    """Borders where positions begin anew, as collators that flatten a batch have it; None for whole sequences.

    ValueError for positions that are anything else.
    """
    batch_size, T = tokens.shape
    if position_ids.shape not in ((1, T), (batch_size, T)):
        raise ValueError(f"position_ids has shape {tuple(position_ids.shape)}; it must be {(batch_size, T)}")
    expected = torch.arange(T, device=tokens.device)
    if torch.equal(position_ids, expected.expand_as(position_ids)):
        return None
    if batch_size > 1:
        raise ValueError(
            "position_ids must count up from 0 in every row; packed sequences are joined into one row, with positions "
            "that begin anew, or cu_seqlens"
        )
    starts = (position_ids[0] == 0).nonzero().flatten()
    is_start = len(starts) > 0 and bool(starts[0] == 0)
    if is_start:
        expected = expected - starts[torch.searchsorted(starts, expected, right=True) - 1]
    if not is_start or not torch.equal(expected, position_ids[0]):
        raise ValueError("position_ids must count up by one from each 0: sequences packed in a row")
    return torch.cat([starts, starts.new_tensor([T])])
