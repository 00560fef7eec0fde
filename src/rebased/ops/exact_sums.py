"""Sums that keep what rounding drops, as long as it takes a million small terms to matter."""

import torch
from torch import Tensor
from torch._C import _functorch

from rebased.ops.differentiation import is_differentiated

__all__ = ["add_exactly", "no_residual"]

BLOCK = 2**16
"""Numbers of a thread at a time, whose float64 copies stay in a CPU's cache. All at once, 0.8 million numbers took one
core 11 ms instead of 1.1, most of it for memory that the system hands out and takes back."""


def no_residual(sums: Tensor) -> Tensor | None:
    return None if sums.dtype == torch.float64 else torch.zeros_like(sums, dtype=torch.bfloat16)


def add_exactly(
    sums: Tensor, residual: Tensor | None, more: Tensor, *, inplace: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The rounded sum and what rounding left over, both exact to the residual's 8 bits.

    By way of float64 rather than by Kahan's four additions, which a compiler may reassociate away. ``inplace`` writes
    the given tensors and returns them.
    """
    if residual is None:
        return (sums.add_(more) if inplace else sums + more), None
    if all(map(_is_plain, (sums, residual, more))) and more.shape == sums.shape:
        into = (sums, residual) if inplace else (torch.empty_like(sums), torch.empty_like(residual))
        return _by_blocks(sums, residual, more, *into)
    exact = sums.double() + residual.double() + more.double()
    rounded = exact.to(sums.dtype)
    left = (exact.detach() - rounded.detach().double()).to(residual.dtype)
    return (sums.copy_(rounded), residual.copy_(left)) if inplace else (rounded, left)


def _is_plain(x: Tensor) -> bool:
    """Whether pieces of it can be computed one after another with nobody following."""
    if torch.compiler.is_compiling() or type(x) is not Tensor or x.device.type != "cpu":
        return False
    return x.is_contiguous() and not _functorch.is_functorch_wrapped_tensor(x) and not is_differentiated(x)


def _by_blocks(
    sums: Tensor, residual: Tensor, more: Tensor, new_sums: Tensor, new_residual: Tensor
) -> tuple[Tensor, Tensor]:
    size = BLOCK * torch.get_num_threads()
    blocks = (x.view(-1).split(size) for x in (sums, residual, more, new_sums, new_residual))
    for part, part_residual, part_more, rounded, left in zip(*blocks, strict=True):
        exact = part.double().add_(part_residual).add_(part_more)
        rounded.copy_(exact)
        left.copy_(exact.sub_(rounded))
    return new_sums, new_residual
