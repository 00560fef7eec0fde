"""A head's cross entropy for wide rows: torch multiplies, some rows of logits at a time; kernels do the rest."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from rebased.ops.triton.cross_entropy_row_kernels import row_gradients_kernel, row_losses_kernel
from rebased.ops.triton.launch import Launcher

PIECE_LOGITS = 2**26
"""In memory at a time, in float32: on an H200, products of fewer rows than this leaves would be slower."""
ROW_MULTIPLE = 128
MAX_BLOCK = 4096
_HAS_MIXED_PRODUCTS = "dtype" in torch.ops.aten.mm.overloads()
"""Whether torch multiplies half precision into float32."""


def forward(x: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, greatest logits, and the logarithms of sums relative to these."""
    losses, peaks, log_sums = (x.new_empty(x.shape[:2], dtype=torch.float32) for _ in range(3))
    labels = labels.contiguous()
    run = _launcher("losses", weight.shape[1], 0)
    for place in _pieces(x, weight):
        logits = _logits(x, weight, place)
        rows = [y[place] for y in (labels, losses, peaks, log_sums)]
        run(len(logits), [logits, *rows], [weight.shape[1]], [])
    return losses, peaks, log_sums


def backward(
    dlosses: Tensor,
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    peaks: Tensor,
    log_sums: Tensor,
    *,
    x_grad: bool,
    weight_grad: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of x and weight, without elements where not asked for."""
    dx = x.new_empty(x.shape if x_grad else 0)
    sums = weight.new_zeros(weight.shape if weight_grad else 0, dtype=torch.float32)
    scale, shift = None, 0
    if x.dtype == torch.float16:  # probabilities, and the gradient of a mean over many rows, are nothing in float16
        shift = 15
        scale = dlosses.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        dlosses = dlosses / scale
    of_rows = [y.contiguous() for y in (labels, peaks, log_sums, dlosses)]
    run = _launcher("gradients", weight.shape[1], shift)
    for place in _pieces(x, weight):
        group, rows = place
        logits = _logits(x, weight, place)
        dlogits = torch.empty_like(logits, dtype=x.dtype)
        run(len(logits), [logits, *(y[place] for y in of_rows), dlogits], [weight.shape[1]], [])
        if x_grad:
            product = _product(dlogits, weight[group], x.dtype if scale is None else torch.float32)
            dx[place] = product if scale is None else product * (scale[group] * 2.0**-shift)
        if weight_grad:
            _add_product(sums[group], dlogits.mT, x[group, rows])
    if weight_grad and scale is not None:
        sums *= scale[..., None] * 2.0**-shift
    return dx, sums.to(weight.dtype)


def _pieces(x: Tensor, weight: Tensor) -> Iterator[tuple[int, slice]]:
    """A group and some of its rows at a time."""
    num_rows = max(1, PIECE_LOGITS // weight.shape[1])
    if num_rows > ROW_MULTIPLE:
        num_rows -= num_rows % ROW_MULTIPLE
    for group in range(x.shape[0]):
        for start in range(0, x.shape[1], num_rows):
            yield group, slice(start, min(start + num_rows, x.shape[1]))


def _logits(x: Tensor, weight: Tensor, place: tuple[int, slice]) -> Tensor:
    return _product(x[place], weight[place[0]].mT, torch.float32)


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """In float32, rounded to ``dtype``."""
    if a.dtype == dtype:
        return torch.mm(a, b)
    if a.is_cuda and _HAS_MIXED_PRODUCTS:
        return torch.mm(a, b, out_dtype=dtype)
    return torch.mm(a.to(dtype), b.to(dtype))


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if a.is_cuda and a.dtype != total.dtype and _HAS_MIXED_PRODUCTS:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))


@lru_cache
def _launcher(kernel: str, num_words: int, shift: int) -> Launcher:
    constants: dict[str, Any] = {"BLOCK": min(MAX_BLOCK, triton.next_power_of_2(num_words))}
    if kernel == "losses":
        return Launcher(row_losses_kernel, constants, num_warps=8, num_stages=2)
    return Launcher(row_gradients_kernel, constants | {"SHIFT": shift}, num_warps=8, num_stages=2)
