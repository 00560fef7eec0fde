"""What the device can do, from operations small enough for a test."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rebased.bench import rates
from rebased.bench.rates import measure_rates
from rebased.bench.timing import Timing


def test_rates_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of two seconds: 100 bytes are read and written, a product of size 4 has 128 FLOPs."""

    def time_call(call: object, **options: object) -> Timing:
        call()  # type: ignore[operator]
        return Timing.from_samples([2.0])

    monkeypatch.setattr(rates, "time_call", time_call)
    found = measure_rates(torch.device("cpu"), torch.float32, copied_bytes=100, matrix_size=4)
    assert (found.bytes_per_second, found.flops_per_second) == (100, 64)


@pytest.mark.parametrize(
    ("dtype", "slow", "rate"),
    [
        (torch.float16, torch.float16, 128),
        (torch.bfloat16, torch.float32, 128),
        (torch.float32, torch.float32, 64),
        (torch.float64, torch.float64, 64),
    ],
    ids=str,
)
def test_numbers_of_16_bits_may_be_multiplied_as_float32(
    dtype: torch.dtype, slow: torch.dtype, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU may take a hundred times as long for float16, whose limit was then passed. Size 4, in one second or two."""
    product = torch.mm
    times: list[float] = []

    def mm(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
        times.append(2.0 if a.dtype == slow else 1.0)
        return product(a, b, out=out)

    def time_call(call: Callable[[], object], **options: object) -> Timing:
        times[:] = [1.0]
        call()
        return Timing.from_samples([times[-1]])

    monkeypatch.setattr(torch, "mm", mm)
    monkeypatch.setattr(rates, "time_call", time_call)
    found = measure_rates(torch.device("cpu"), dtype, copied_bytes=100, matrix_size=4)
    assert found.flops_per_second == rate


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rates_are_measured(dtype: torch.dtype) -> None:
    found = measure_rates(torch.device("cpu"), dtype, copied_bytes=1 << 16, matrix_size=16, min_seconds=0)
    assert found.bytes_per_second > 0
    assert found.flops_per_second > 0
