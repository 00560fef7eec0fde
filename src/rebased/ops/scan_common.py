"""What the operators that scan along time share: checks, the choice of a backend, and replicas under vmap."""

import logging
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rebased.ops.backends import no_triton_on, require_triton
from rebased.ops.checks import INPUT_DTYPES

_LOGGER = logging.getLogger(__name__)


def check_floats(name: str, x: Tensor, axes: str) -> None:
    """A tensor of numbers, of at least size 1 on its last axis, whose axes are named, e.g. ``B T M``."""
    names = axes.split()
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; it must be a tensor")
    if x.dtype not in INPUT_DTYPES:
        raise ValueError(f"{name} has dtype {x.dtype}; it may be float16, bfloat16, float32 or float64")
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


def runs_on_triton(backend: str, name: str, x: Tensor, reason: str | None) -> bool:
    """Whether Triton's kernels do the work, ``reason`` being what speaks against it already.

    Decided where nothing is traced: questions about the device break no graph.
    """
    if x.numel() == 0 or backend == "torch":
        return False
    reason = reason or no_triton_on(name, x.device) or _no_tuples()
    if backend == "triton":
        require_triton(reason, instead="torch")
        return True
    chosen = x.is_cuda and reason is None
    _LOGGER.debug("backend='auto' chose %r for %s on %s", "triton" if chosen else "torch", tuple(x.shape), x.device)
    return chosen


def _no_tuples() -> str | None:
    """Tuples of tensors in kernels came with Triton 3.3, torch 2.6 with an earlier one."""
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
    """Turns ``size`` mapped calls of ``num_groups`` groups each into one call of size · num_groups groups."""

    def __init__(self, size: int, num_groups: int) -> None:
        """``size`` may be 0, so the number of groups cannot be inferred later."""
        self._sizes = size, num_groups

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
