"""Timing summarises samples and keeps its promises on how often it calls."""

import itertools

import pytest
import torch

from rebased.bench import timing
from rebased.bench.cache import cache_clearer
from rebased.bench.timing import Timing, time_call

CPU = torch.device("cpu")


def test_summary_by_hand() -> None:
    summary = Timing.from_samples([5.0, 1.0, 2.0, 4.0, 3.0])
    assert summary == Timing(median_seconds=3, spread_seconds=2, min_seconds=1, max_seconds=5, repetitions=5)


def test_one_sample_has_no_spread() -> None:
    assert Timing.from_samples([2.0]).spread_seconds == 0


def test_no_samples() -> None:
    with pytest.raises(ValueError, match="seconds is empty"):
        Timing.from_samples([])


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is one second after the last: each call takes one second."""
    clock = itertools.count()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(clock)))


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize(
    ("min_repetitions", "min_seconds", "repetitions"),
    [(3, 0.0, 3), (3, 7.0, 7), (1, 0.0, 1)],
    ids=["repetitions-bind", "seconds-bind", "single"],
)
def test_repeats_until_both_minimums(min_repetitions: int, min_seconds: float, repetitions: int) -> None:
    calls: list[None] = []
    found = time_call(
        lambda: calls.append(None), device=CPU, warmup=2, min_repetitions=min_repetitions, min_seconds=min_seconds
    )
    assert found.repetitions == repetitions
    assert len(calls) == repetitions + 2
    assert found.median_seconds == 1


def test_no_repetitions() -> None:
    with pytest.raises(ValueError, match="min_repetitions=0"):
        time_call(lambda: None, device=CPU, min_repetitions=0)


@pytest.mark.parametrize(
    ("samples", "left", "expected"),
    [([], 9.0, 5), ([0.1, 0.1], 0.35, 4), ([1e-4], 9.0, 50), ([1.0], -1.0, 1)],
    ids=["first", "what-is-left", "bounded", "at-least-one"],
)
def test_calls_queued_at_a_time(samples: list[float], left: float, expected: int) -> None:
    assert timing._next_batch(samples, 5, left) == expected


@pytest.mark.gpu
def test_cuda_clock_sees_the_work() -> None:
    """A queued product takes far longer on the device than its launch does on the host."""
    x = torch.randn(4096, 4096, device="cuda")
    found = time_call(lambda: x @ x, device=torch.device("cuda"), min_repetitions=4, min_seconds=0)
    assert found.repetitions == 4
    assert found.min_seconds > 1e-4


@pytest.mark.gpu
def test_more_is_read_than_the_cache_holds() -> None:
    device = torch.device("cuda")
    before = torch.cuda.memory_allocated(device)
    clear = cache_clearer(device)
    clear()
    torch.cuda.synchronize(device)
    size = torch.cuda.get_device_properties(device).L2_cache_size
    assert torch.cuda.memory_allocated(device) - before >= 2 * size > 0
