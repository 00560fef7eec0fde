"""Tensors (B, T, G, ·) as the scans' kernels read and write them: any strides, but a token's numbers side by side."""

from torch import Tensor


def has_rows(x: Tensor) -> bool:
    """Whether a token's numbers lie side by side."""
    return x.stride(-1) == 1 or x.shape[-1] == 1


def with_rows(x: Tensor) -> Tensor:
    return x if has_rows(x) else x.contiguous()


def strides_of(*tensors: Tensor) -> list[int]:
    """Of batch, time and groups."""
    return [stride for x in tensors for stride in x.stride()[:3]]
