"""Packed sequences, as position ids tell of them."""

import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["borders_of"]


def borders_of(position_ids: Int[Tensor, "B T"] | None, tokens: Int[Tensor, "B T"]) -> Int[Tensor, " N1"] | None:
    """Borders where positions begin anew, as collators that flatten a batch have it; None for a single sequence."""
    if position_ids is None or tokens.shape[0] != 1 or torch.compiler.is_compiling():
        return None
    if position_ids.shape != tokens.shape:
        raise ValueError(f"position_ids has shape {tuple(position_ids.shape)}; it must be {tuple(tokens.shape)}")
    starts = (position_ids[0] == 0).nonzero().flatten()
    if len(starts) < 2:
        return None
    expected = torch.arange(tokens.shape[1], device=tokens.device)
    expected = expected - starts[torch.searchsorted(starts, expected, right=True) - 1]
    if starts[0] != 0 or not torch.equal(expected, position_ids[0]):
        raise ValueError("position_ids must count up by one from each 0: sequences packed in a row")
    return torch.cat([starts, starts.new_tensor([tokens.shape[1]])])
