"""What several operators share: checks, pieces of a batch, and replicas under vmap."""

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


class Replicas:
    """Turns ``size`` mapped calls into one with as many times the groups."""

    def __init__(self, size: int, grouped: Tensor, dim: int | None) -> None:
        """``grouped``: something with an entry for each group, and its mapped axis."""
        self._sizes = size, grouped.shape[1 if dim == 0 else 0]

    def join(
        self, tensors: Sequence[Tensor | None], dims: Sequence[int | None], groups: Sequence[int]
    ) -> list[Tensor | None]:
        """``dims``: the mapped axis of each tensor; ``groups``: the axis of one call's tensor that counts groups."""
        return [
            None if x is None else self._join(x, dim, axis) for x, dim, axis in zip(tensors, dims, groups, strict=False)
        ]

    def split(self, tensors: Sequence[Tensor], groups: Sequence[int]) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """All calls' results, and where their mapped axes are."""
        results = tuple(x.unflatten(axis, self._sizes) for x, axis in zip(tensors, groups, strict=True))
        return results, tuple(groups)

    def _join(self, x: Tensor, dim: int | None, axis: int) -> Tensor:
        if dim is None:
            x = x.unsqueeze(axis).expand(*x.shape[:axis], self._sizes[0], *x.shape[axis:])
        else:
            x = x.movedim(dim, axis)
        return x.flatten(axis, axis + 1)
