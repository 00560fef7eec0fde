"""A head's cross entropy: one kernel forward, one for each gradient backward; wide rows have another form."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from rebased.ops.triton import cross_entropy_rows
from rebased.ops.triton.cross_entropy_kernels import (
    cross_entropy_dweight_kernel,
    cross_entropy_dx_kernel,
    cross_entropy_forward_kernel,
)
from rebased.ops.triton.launch import Launcher
from rebased.ops.triton.precision import allows_tf32

MAX_WIDTH = 512
"""A program holds whole rows of x; wider ones take another form."""

MAX_FLOAT32_WIDTH = 128
"""The same in float32, whose products are made of three: more than this does not fit into registers."""

ENOUGH_PROGRAMS = 264
"""Two for each multiprocessor of an H100 or H200. With fewer tiles of the table, dweight is summed in parts."""

KERNELS = {
    "forward": cross_entropy_forward_kernel,
    "dx": cross_entropy_dx_kernel,
    "dweight": cross_entropy_dweight_kernel,
}


@dataclass(frozen=True)
class Tile:
    """How many rows of x and of the table are multiplied at a time, and by how much of a multiprocessor."""

    rows: int = 128
    words: int = 64
    num_warps: int = 8
    num_stages: int = 3


def tile_of(kernel: str, dtype: torch.dtype, padded: int) -> Tile:
    """By timing on an H200: 10 groups of 16,384 rows, 8192 words.

    Up to 64 numbers a row, tiles of half precision are shared by four warps, so that a multiprocessor has several: one
    multiplies while another has exponentials to do. With eight, dweight took 1.2 to 1.8 times as long. Only float32
    rows of more than 64 have more than a few spills. Shared memory is up to 193 KiB, 99 KiB for rows up to 128 in half
    precision.
    """
    if dtype == torch.float32:
        return Tile(num_stages=1 if padded > 64 and kernel == "dx" else 2)
    if padded > 256:
        return Tile(rows=32 if kernel == "dweight" else 64, num_stages=2)
    if padded > 64:
        tile = Tile(num_stages=2)
        return replace(tile, words=128) if kernel == "forward" and padded <= 128 else tile
    if kernel == "forward":
        return Tile(rows=64, words=128, num_warps=4)
    return Tile(num_warps=4, num_stages=2 if kernel == "dweight" and padded == 32 else 3)


def forward(x: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, greatest logits, and the logarithms of sums relative to these."""
    if _is_wide(x):
        return cross_entropy_rows.forward(x, weight, labels)
    G, N, _ = x.shape
    call = _Call("forward", x, weight)
    tiles = triton.cdiv(N, call.tile.rows)
    losses, peaks, log_sums = (x.new_empty(G, N, dtype=torch.float32) for _ in range(3))
    call.run(
        G * tiles,
        [call.x, call.weight, labels.contiguous(), losses, peaks, log_sums],
        [*call.strides, N, weight.shape[1], tiles],
    )
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
    if _is_wide(x):
        return cross_entropy_rows.backward(
            dlosses, x, weight, labels, peaks, log_sums, x_grad=x_grad, weight_grad=weight_grad
        )
    of_rows = [y.contiguous() for y in (labels, peaks, log_sums)]
    dlosses = dlosses.contiguous()
    dx = _dx(dlosses, x, weight, of_rows) if x_grad else x.new_empty(0)
    return dx, _dweight(dlosses, x, weight, of_rows) if weight_grad else weight.new_empty(0)


def _is_wide(x: Tensor) -> bool:
    return x.shape[2] > (MAX_FLOAT32_WIDTH if x.dtype == torch.float32 else MAX_WIDTH)


def _dx(dlosses: Tensor, x: Tensor, weight: Tensor, of_rows: list[Tensor]) -> Tensor:
    G, N, _ = x.shape
    call = _Call("dx", x, weight)
    tiles = triton.cdiv(N, call.tile.rows)
    dx = x.new_empty(x.shape)
    call.run(
        G * tiles,
        [dlosses, call.x, call.weight, *of_rows, dx],
        [*call.strides, N, weight.shape[1], tiles],
    )
    return dx


def _dweight(dlosses: Tensor, x: Tensor, weight: Tensor, of_rows: list[Tensor]) -> Tensor:
    (G, N, _), V = x.shape, weight.shape[1]
    call = _Call("dweight", x, weight)
    tiles = triton.cdiv(V, call.tile.words)
    row_tiles = triton.cdiv(N, call.tile.rows)
    tiles_per_part = triton.cdiv(row_tiles, triton.cdiv(ENOUGH_PROGRAMS, G * tiles))
    parts = triton.cdiv(row_tiles, tiles_per_part)
    scale = None
    if x.dtype == torch.float16:  # the gradient of a mean over many rows is nothing in float16
        scale = dlosses.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        dlosses = dlosses / scale
    is_final = parts == 1 and scale is None
    sums = weight.new_empty(parts, *weight.shape, dtype=weight.dtype if is_final else torch.float32)
    call.run(
        G * tiles * parts,
        [dlosses, call.x, call.weight, *of_rows, sums],
        [*call.strides, G, N, V, tiles, parts, tiles_per_part * call.tile.rows],
    )
    if is_final:
        return sums[0]
    total = sums.sum(dim=0)
    return (total if scale is None else total * scale[..., None]).to(weight.dtype)


class _Call:
    """A kernel, and its inputs as it takes them: matrices without gaps, with any distance between groups."""

    def __init__(self, kernel: str, x: Tensor, weight: Tensor) -> None:
        width = x.shape[2]
        padded = max(16, triton.next_power_of_2(width))
        self.tile = tile_of(kernel, x.dtype, padded)
        self.x, self.weight = (y if y[0].is_contiguous() else y.contiguous() for y in (x, weight))
        self.strides = [self.x.stride(0), self.weight.stride(0)]
        self._launcher = _launcher(
            kernel,
            x.dtype,
            width,
            padded,
            self.tile,
            x.shape[1] % self.tile.rows == 0,
            weight.shape[1] % self.tile.words == 0,
            x.dtype == torch.float32 and allows_tf32(),
        )

    def run(self, num_programs: int, tensors: list[Tensor], numbers: list[int]) -> None:
        self._launcher(num_programs, tensors, numbers, [])


@lru_cache
def _launcher(
    kernel: str,
    dtype: torch.dtype,
    width: int,
    padded: int,
    tile: Tile,
    has_even_rows: bool,
    has_even_words: bool,
    allows_tf32: bool,
) -> Launcher:
    constants: dict[str, Any] = {
        "W": width,
        "WP": padded,
        "ROWS": tile.rows,
        "WORDS": tile.words,
        "EVEN_ROWS": has_even_rows,
        "EVEN_WORDS": has_even_words,
        "PRECISION": "tf32x3" if dtype == torch.float32 and not allows_tf32 else "tf32",
    }
    if kernel != "forward":
        constants["SHIFT"] = 15 if dtype == torch.float16 else 0
    return Launcher(KERNELS[kernel], constants, num_warps=tile.num_warps, num_stages=tile.num_stages)
