"""Rules for `torch.vmap`: what many replicas ask of an operator, as one call of it with larger tensors."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor


def stacked(x: Tensor, dim: int | None, size: int, axis: int = 0) -> Tensor:
    """All replicas' x, its mapped axis ``dim`` moved to ``axis``; no copy, also of what they share."""
    if dim is None:
        return x.unsqueeze(axis).expand(*x.shape[:axis], size, *x.shape[axis:])
    return x.movedim(dim, axis)


def join_replicas(
    operator: Callable[..., Any],
    info: Any,
    in_dims: Any,
    *arguments: Any,
    inputs: Sequence[int | None],
    outputs: int | tuple[int | None, ...],
    grouped: bool = True,
) -> tuple[Any, Any]:
    """One call of ``operator`` on the groups of all replicas: a rule for `define_operator`.

    ``inputs``: of each of the first arguments, the axis of one replica's tensor that counts groups, or ``None`` if it
    is passed on as it is. ``outputs``: the same of the result, or of each of them. A tensor of one group is not copied,
    wherever its axis is. Without ``grouped``, one replica's tensors have no such axis: it is the mapped one.
    """
    joined, sizes = list(arguments), None
    for i, axis in enumerate(inputs):
        if axis is not None and arguments[i] is not None:
            x = stacked(arguments[i], in_dims[i], info.batch_size, axis)
            sizes = x.shape[axis : axis + 2]  # not inferred later: there may be no replicas
            joined[i] = x.flatten(axis, axis + 1) if grouped else x
    results = operator(*joined)

    def split(y: Tensor, axis: int | None) -> Tensor:
        return y.unflatten(axis, sizes) if grouped and axis is not None else y

    if isinstance(outputs, int):
        return split(results, outputs), outputs
    return tuple(split(y, axis) for y, axis in zip(results, outputs, strict=True)), outputs
