"""What several operators share: checks, and pieces of a batch."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rebased.ops.backends import HAS_TRITON
from rebased.ops.checks import check_dtype


def check_floats(name: str, x: Tensor, axes: str) -> None:
    """A tensor of numbers, of at least size 1 on its last axis, whose axes are named, e.g. ``B T M``."""
    names = axes.split()
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; it must be a tensor")
    check_dtype(name, x)
    if x.ndim != len(names):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; it must have {len(names)} axes ({', '.join(names)})")
    if x.shape[-1] == 0:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; its last axis must not be empty")


def check_like(name: str, x: Tensor, shape: Sequence[int], first_name: str, first: Tensor) -> None:
    """Shape, and that x is where the first tensor is."""
    if tuple(x.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; it must be {tuple(shape)} to go with {first_name}")
    if x.device != first.device:
        raise ValueError(f"{name} is on {x.device}, {first_name} on {first.device}; all must be on one device")


def check_state_dtype(name: str, x: Tensor, dtype: torch.dtype) -> None:
    if x.dtype != dtype:
        raise ValueError(f"{name} has dtype {x.dtype}; these inputs need {dtype}")


def no_tuples() -> str | None:
    """Why these kernels cannot run: tuples of tensors came with Triton 3.3, torch 2.6 with an earlier one."""
    if not HAS_TRITON:
        return None  # there is a better reason
    import triton.language

    return None if hasattr(triton.language, "tuple") else "needs Triton 3.3 or later"


def pieces(batch_size: int, num_groups: int, numbers: int, limit: int) -> Iterator[tuple[slice, slice]]:
    """Slices of batch and groups: of up to ``limit`` numbers each, where a sequence of one group has ``numbers``."""
    groups_at_once = max(1, min(num_groups, limit // numbers))
    num_rows = max(1, limit // (numbers * groups_at_once))
    for row in range(0, batch_size, num_rows):
        for group in range(0, num_groups, groups_at_once):
            yield slice(row, row + num_rows), slice(group, group + groups_at_once)
