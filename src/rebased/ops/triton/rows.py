"""Tensors (B, T, G, ·) as the scans' kernels read and write them: any strides, but a token's numbers side by side."""

from torch import Tensor

MAX_TIME_STRIDE = 2**31 // 16
"""Kernels find up to 16 tokens from one pointer, with offsets in 32 bits."""


def _has_rows(x: Tensor) -> bool:
    """Whether a token's numbers lie side by side, and not too far from the next one's."""
    return (x.stride(-1) == 1 or x.shape[-1] == 1) and x.stride(1) < MAX_TIME_STRIDE


def with_rows(x: Tensor) -> Tensor:
    return x if _has_rows(x) else x.contiguous()


def rows_for(result: Tensor) -> Tensor:
    """What a kernel writes instead of a result that has not its strides: that itself, or what `copied` copies to it."""
    return result if _has_rows(result) else result.new_empty(result.shape)


def copied(result: Tensor, written: Tensor) -> Tensor:
    return result if written is result else result.copy_(written)


def strides_of(*tensors: Tensor) -> list[int]:
    """Of batch, time and groups."""
    return [stride for x in tensors for stride in x.stride()[:3]]
