"""Which dtype inputs arrive in, and which one sums are kept in."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def sums_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums over values of this dtype are kept in: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def compute_dtype(x: Tensor) -> torch.dtype:
    """The same for a tensor."""
    return sums_dtype(x.dtype)


def autocast_inputs(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast as autocast casts a matrix product's inputs: to its dtype, float64 excepted; outside it, not at all."""
    device_type = tensors[0].device.type
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):  # meta knows no autocast
        return tensors
    dtype = torch.get_autocast_dtype(device_type)
    return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in tensors)


def no_autocast(like: Tensor) -> AbstractContextManager[object]:
    """A context in which nothing is cast: similarity and features are computed in the compute dtype."""
    if like.device.type == "meta":
        return nullcontext()
    return torch.autocast(like.device.type, enabled=False)


def rounding(dtype: torch.dtype) -> float:
    """How far rounding may take φ(q)·Σφ(k) from its value, relative to |φ(q)|·|Σφ(k)|.

    Some units, for the sums in a state are themselves rounded. For a non-negative kernel what is below counts as zero.
    """
    return 32 * torch.finfo(dtype).eps
