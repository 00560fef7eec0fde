"""What the device can do: how fast it copies and how fast it multiplies, measured like everything else."""

from dataclasses import dataclass

import torch

from rebased.bench.timing import time_call

__all__ = ["Rates", "measure_rates"]


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Medians of large operations, the device's own, in the same run as the timings they are compared with."""

    bytes_per_second: float
    """Of a large copy, bytes read and bytes written both counted."""
    flops_per_second: float
    """Of a large square matrix product of random numbers, in the bench's dtype, or float32 if that is faster.

    16 bits can be multiplied as float32, and many CPUs have no other way that is fast. float64 cannot.
    """


def measure_rates(
    device: torch.device,
    dtype: torch.dtype,
    *,
    copied_bytes: int | None = None,
    matrix_size: int | None = None,
    min_seconds: float = 0.1,
) -> Rates:
    """By default 1 GiB is copied and matrices of 8192 multiplied on a GPU; on a CPU 256 MiB and 1024."""
    is_cuda = device.type == "cuda"
    size = matrix_size or (8192 if is_cuda else 1024)
    source = torch.ones(copied_bytes or (1 << 30 if is_cuda else 1 << 28), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = time_call(lambda: target.copy_(source), device=device, min_seconds=min_seconds)
    dtypes = {dtype, torch.float32} if dtype.itemsize == 2 else {dtype}
    seconds = min(_product_seconds(size, device, each, min_seconds) for each in dtypes)
    return Rates(
        bytes_per_second=2 * source.nbytes / copy.median_seconds,
        flops_per_second=2 * size**3 / seconds,
    )


def _product_seconds(size: int, device: torch.device, dtype: torch.dtype, min_seconds: float) -> float:
    # Random, because a card that multiplies zeros draws less power and may run at a higher clock.
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    c = torch.empty_like(a)
    return time_call(lambda: torch.mm(a, b, out=c), device=device, min_seconds=min_seconds).median_seconds
