"""Rows of a batch of sequences, picked by their places."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

__all__ = ["after_past", "last_rows", "later", "pick"]


def pick(x: Shaped[Tensor, "B T ..."], at: Int[Tensor, "B P"] | None) -> Shaped[Tensor, "B P ..."]:
    """The rows of each sequence at given places, which must be there, or all of them; one x may serve all rows."""
    if at is None:
        return x
    # By index, not torch.gather: under vmap that would compile for one number of replicas only (torch 2.13).
    rows = torch.arange(at.shape[0], device=at.device)[:, None]
    return x.expand(at.shape[0], *x.shape[1:])[rows, at]


def last_rows(
    x: Shaped[Tensor, "B ST ..."], num: int, key_mask: Bool[Tensor, "B T"] | None
) -> Shaped[Tensor, "B num ..."]:
    """The last rows of (B, S + T, …) before the padding at the end that a mask of the last T leaves.

    A copy: a view would keep all of the sequence in memory.
    """
    if key_mask is None:
        return x[:, x.shape[1] - num :].clone()
    end = x.shape[1] - key_mask.shape[1] + key_mask.sum(dim=1, keepdim=True)  # (B, 1)
    return pick(x, end - num + torch.arange(num, device=x.device))


def after_past(
    x: Float[Tensor, "B T W"], past: Float[Tensor, "B S W"] | None, num_past: int
) -> Float[Tensor, "B ST W"]:
    """The rows after those before them, which are zeros at a sequence's start."""
    if past is None:
        return torch.nn.functional.pad(x, (0, 0, num_past, 0))
    return torch.cat([past.to(x.dtype), x], dim=1)


def later(x: Float[Tensor, "B T W"], by: int) -> Float[Tensor, "B T W"]:
    """Each row ``by`` places later; zeros are first."""
    is_there = torch.arange(x.shape[1], device=x.device) >= by
    return torch.where(is_there[:, None], x.roll(by, dims=1), 0.0)
