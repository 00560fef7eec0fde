"""Rows of a batch of sequences, picked by their places."""

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

__all__ = ["last_rows", "pick"]


def pick(x: Shaped[Tensor, "B T ..."], at: Int[Tensor, "B P"] | None) -> Shaped[Tensor, "B P ..."]:
    """The rows of each sequence at given places, which must be there, or all of them; one x may serve all rows."""
    return x if at is None else x.take_along_dim(at.reshape(*at.shape, *[1] * (x.ndim - 2)), dim=1)


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
