"""Dividing the sums, where they are plain tensors: in the reference, in a step, in the attention matrix."""

import torch
from jaxtyping import Float
from torch import Tensor

from rebased.ops.dtypes import rounding


def drop_rounding(
    numerator: Float[Tensor, "*B D"], normalizer: Float[Tensor, "*B 1"], magnitude: Float[Tensor, "*B 1"]
) -> tuple[Float[Tensor, "*B D"], Float[Tensor, "*B 1"]]:
    """A state's part of the sums, set to zero where its normaliser is rounding error: see docs/numerics.md."""
    real = normalizer > magnitude * rounding(normalizer.dtype)
    return numerator.where(real, 0), normalizer.where(real, 0)


def divide(
    numerator: Float[Tensor, "*B D"], normalizer: Float[Tensor, "*B 1"], *, eps: float, nonnegative: bool
) -> Float[Tensor, "*B D"]:
    """The quotient numerator / (normalizer + eps), and 0 where a non-negative kernel's normaliser is zero."""
    if not nonnegative:
        return numerator / (normalizer + eps)
    return numerator / torch.where(normalizer > 0, normalizer + eps, torch.inf)
