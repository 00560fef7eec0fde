"""Norm, scale and shift of rows: one kernel in each direction, a program holding whole rows.

Rows are counted within a group, which has one weight and one bias. Names in kernels: W is the width and WP the next
power of two.
"""

# Triton reads kernels as a language of its own, in which nothing is annotated; the rest of this file is.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from rebased.ops.triton.launch import Launcher
from rebased.ops.triton.tiles import load_rows, store_rows

TILE_ELEMENTS = 2048
"""How many numbers a program holds at a time, unless one row is more: 16 a thread, two loads of bfloat16."""
NUM_PROGRAMS = 528
"""How many programs the backward pass is spread over: four for each multiprocessor of an H100 or H200."""


@triton.jit
def row_starts(row, group, num_rows, x_group, x_outer, x_inner, inner, W: tl.constexpr, DENSE: tl.constexpr):
    """Where rows of x begin. Two strides reach every head of a slice of a wider projection, which needs no copy then.

    Of rows without gaps the compiler is told the distance: loads are wide also where W is no multiple of 16.
    """
    if DENSE:
        start = (group * num_rows + row) * W
    else:
        start = group * x_group + (row // inner).to(tl.int64) * x_outer + (row % inner).to(tl.int64) * x_inner
    return start


@triton.jit
def norm_forward_kernel(
    x,
    weight,
    bias,
    out,
    mean,
    rstd,
    x_group,
    x_outer,
    x_inner,
    inner,
    weight_group,
    bias_group,
    num_rows,
    tiles_per_group,
    eps,
    W: tl.constexpr,
    WP: tl.constexpr,
    ROWS: tl.constexpr,
    DENSE: tl.constexpr,
    NORMALIZE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """One program: one tile of rows."""
    group = (tl.program_id(0) // tiles_per_group).to(tl.int64)
    row = tl.program_id(0) % tiles_per_group * ROWS + tl.arange(0, ROWS)
    real = row < num_rows
    column = tl.arange(0, WP)
    start = row_starts(row, group, num_rows, x_group, x_outer, x_inner, inner, W, DENSE)
    y = load_rows(x, start, real, 1, W, WP, tl.float32, False)
    row = group * num_rows + row  # of all groups, in 64 bits
    if NORMALIZE:
        average = tl.sum(y, axis=1) / W
        y -= average[:, None]
        if W != WP:
            y = tl.where((column < W)[None, :], y, 0.0)
        scale = tl.rsqrt(tl.sum(y * y, axis=1) / W + eps)
        y *= scale[:, None]
        tl.store(mean + row, average, mask=real)
        tl.store(rstd + row, scale, mask=real)
    if HAS_WEIGHT:
        y *= tl.load(weight + group * weight_group + column, mask=column < W, other=0.0).to(tl.float32)[None, :]
    if HAS_BIAS:
        y += tl.load(bias + group * bias_group + column, mask=column < W, other=0.0).to(tl.float32)[None, :]
    store_rows(out, row, real, y, W, W, WP, False)


@triton.jit
def norm_backward_kernel(
    dout,
    x,
    mean,
    rstd,
    weight,
    dx,
    partial,
    x_group,
    x_outer,
    x_inner,
    inner,
    weight_group,
    num_rows,
    tiles_per_group,
    programs_per_group,
    W: tl.constexpr,
    WP: tl.constexpr,
    ROWS: tl.constexpr,
    DENSE: tl.constexpr,
    NORMALIZE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    WEIGHT_GRAD: tl.constexpr,
    BIAS_GRAD: tl.constexpr,
):
    """One program: every programs_per_group-th tile of a group, and one row each of the parameters' partial sums."""
    group = (tl.program_id(0) // programs_per_group).to(tl.int64)
    column = tl.arange(0, WP)
    # Sums are kept for each row of the tile and added up once: within the loop no thread waits for another one's rows.
    dweight = tl.zeros((ROWS, WP), tl.float32)
    dbias = tl.zeros((ROWS, WP), tl.float32)
    for tile in range(tl.program_id(0) % programs_per_group, tiles_per_group, programs_per_group):
        row = tile * ROWS + tl.arange(0, ROWS)
        real = row < num_rows
        start = row_starts(row, group, num_rows, x_group, x_outer, x_inner, inner, W, DENSE)
        row = group * num_rows + row  # of all groups, in 64 bits
        grad = load_rows(dout, row, real, W, W, WP, tl.float32, False)
        if NORMALIZE or WEIGHT_GRAD:
            normalized = load_rows(x, start, real, 1, W, WP, tl.float32, False)
        if NORMALIZE:
            scale = tl.load(rstd + row, mask=real, other=0.0)
            # Beyond the width this is not zero, but the gradient is, which all sums multiply it with.
            normalized = (normalized - tl.load(mean + row, mask=real, other=0.0)[:, None]) * scale[:, None]
        if WEIGHT_GRAD:
            dweight += grad * normalized
        if BIAS_GRAD:
            dbias += grad
        if HAS_WEIGHT:
            factor = tl.load(weight + group * weight_group + column, mask=column < W, other=0.0)
            grad *= factor.to(tl.float32)[None, :]
        if NORMALIZE:
            average = tl.sum(grad, axis=1) / W
            along_x = tl.sum(grad * normalized, axis=1) / W
            grad = (grad - average[:, None] - normalized * along_x[:, None]) * scale[:, None]
        store_rows(dx, row, real, grad, W, W, WP, False)
    partial += tl.program_id(0).to(tl.int64) * W + column
    if WEIGHT_GRAD:
        tl.store(partial, tl.sum(dweight, axis=0), mask=column < W)
        partial += tl.num_programs(0).to(tl.int64) * W
    if BIAS_GRAD:
        tl.store(partial, tl.sum(dbias, axis=0), mask=column < W)


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, normalize: bool, *, grouped: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, mean and 1 / sqrt(var + eps), the latter two empty without a norm."""
    num_groups, num_rows, width = _sizes(x, grouped)
    x, strides = _strides(x, grouped)
    weight, weight_group = _parameter(weight)
    bias, bias_group = _parameter(bias)
    padded, rows, num_warps = _tile(width)
    tiles = triton.cdiv(num_rows, rows)
    out = x.new_empty(x.shape)
    mean, rstd = (x.new_empty(x.shape[:-1] if normalize else 0, dtype=torch.float32) for _ in range(2))
    run = _forward_launcher(
        width, padded, rows, x.is_contiguous(), normalize, weight is not None, bias is not None, num_warps
    )
    run(
        num_groups * tiles,
        # A kernel does not read what is missing, but something must be passed.
        [x, x if weight is None else weight, x if bias is None else bias, out, mean, rstd],
        [*strides, weight_group, bias_group, num_rows, tiles],
        [eps],
    )
    return out, mean, rstd


def backward(
    dout: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    normalize: bool,
    *,
    grouped: bool,
    weight_grad: bool,
    bias_grad: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of as many parameters as asked for in float32."""
    num_groups, num_rows, width = _sizes(x, grouped)
    dout = dout.contiguous()
    mean, rstd = mean.contiguous(), rstd.contiguous()
    x, strides = _strides(x, grouped)
    weight, weight_group = _parameter(weight)
    padded, rows, num_warps = _tile(width)
    tiles = triton.cdiv(num_rows, rows)
    programs = min(tiles, max(1, NUM_PROGRAMS // num_groups))
    dx = x.new_empty(x.shape)
    partial = x.new_empty(weight_grad + bias_grad, num_groups, programs, width, dtype=torch.float32)
    run = _backward_launcher(
        width, padded, rows, x.is_contiguous(), normalize, weight is not None, weight_grad, bias_grad, num_warps
    )
    run(
        num_groups * programs,
        [dout, x, mean, rstd, x if weight is None else weight, dx, partial],
        [*strides, weight_group, num_rows, tiles, programs],
        [],
    )
    dparameters = partial.sum(dim=2)
    return dx, dparameters if grouped else dparameters[:, 0]


def _sizes(x: Tensor, grouped: bool) -> tuple[int, int, int]:
    """Groups, rows of each, width."""
    return x.shape[0] if grouped else 1, math.prod(x.shape[int(grouped) : -1]), x.shape[-1]


def _strides(x: Tensor, grouped: bool) -> tuple[Tensor, list[int]]:
    """x, or a copy if `row_starts` cannot find its rows, and its x_group, x_outer, x_inner and inner."""
    if not x.is_contiguous() and (x.stride(-1) == 1 or x.shape[-1] == 1):
        merged: list[tuple[int, int]] = []  # size and stride of what is left of the axes of rows
        for size, stride in zip(x.shape[int(grouped) : -1], x.stride()[int(grouped) : -1], strict=True):
            if merged and merged[-1][1] == size * stride:
                merged[-1] = merged[-1][0] * size, stride
            elif size > 1:
                merged.append((size, stride))
        if len(merged) <= 2:
            (_, x_outer), (inner, x_inner) = [*merged, (1, 0), (1, 0)][:2]
            return x, [x.stride(0) if grouped else 0, x_outer, x_inner, inner]
    return x.contiguous(), [0, 0, 0, 1]


def _parameter(parameter: Tensor | None) -> tuple[Tensor | None, int]:
    """A weight or bias whose numbers lie side by side, and the distance between two groups' ones."""
    if parameter is None:
        return None, 0
    if parameter.stride(-1) != 1 and parameter.shape[-1] > 1:
        parameter = parameter.contiguous()
    return parameter, parameter.stride(0) if parameter.ndim == 2 else 0


def _tile(width: int) -> tuple[int, int, int]:
    """Padded width, rows at a time, warps."""
    padded = triton.next_power_of_2(width)
    rows = max(1, TILE_ELEMENTS // padded)
    return padded, rows, min(16, max(4, padded // 512))


@lru_cache
def _forward_launcher(
    width: int,
    padded: int,
    rows: int,
    is_dense: bool,
    normalize: bool,
    has_weight: bool,
    has_bias: bool,
    num_warps: int,
) -> Launcher:
    constants = {
        "W": width,
        "WP": padded,
        "ROWS": rows,
        "DENSE": is_dense,
        "NORMALIZE": normalize,
        "HAS_WEIGHT": has_weight,
        "HAS_BIAS": has_bias,
    }
    return Launcher(norm_forward_kernel, constants, num_warps=num_warps, num_stages=1)


@lru_cache
def _backward_launcher(
    width: int,
    padded: int,
    rows: int,
    is_dense: bool,
    normalize: bool,
    has_weight: bool,
    weight_grad: bool,
    bias_grad: bool,
    num_warps: int,
) -> Launcher:
    constants = {
        "W": width,
        "WP": padded,
        "ROWS": rows,
        "DENSE": is_dense,
        "NORMALIZE": normalize,
        "HAS_WEIGHT": has_weight,
        "WEIGHT_GRAD": weight_grad,
        "BIAS_GRAD": bias_grad,
    }
    return Launcher(norm_backward_kernel, constants, num_warps=num_warps, num_stages=1)
