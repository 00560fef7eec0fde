"""What the device can do, from operations small enough for a test."""

import pytest
import torch

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rates_are_measured(dtype: torch.dtype) -> None:
    found = measure_rates(torch.device("cpu"), dtype, copied_bytes=1 << 16, matrix_size=16, min_seconds=0)
    assert found.bytes_per_second > 0
    assert found.flops_per_second > 0
