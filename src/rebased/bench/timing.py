"""How long a call takes: median and spread over repetitions, after a warm-up."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rebased.bench.cache import cache_clearer

__all__ = ["Timing", "time_call", "time_launch"]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds per call over ``repetitions`` calls."""

    median_seconds: float
    """Half of the calls took at most this long."""
    spread_seconds: float
    """Interquartile range: the middle half of the calls lies this close together."""
    min_seconds: float
    """The fastest call."""
    max_seconds: float
    """The slowest call."""
    repetitions: int
    """Timed calls; the warm-up is not among them."""

    @classmethod
    def from_samples(cls, seconds: list[float]) -> "Timing":
        """Summarise one or more calls' times."""
        if not seconds:
            raise ValueError("seconds is empty; it must hold the time of at least one call")
        spread = 0.0
        if len(seconds) > 1:
            first, _, third = statistics.quantiles(seconds, n=4, method="inclusive")
            spread = third - first
        return cls(
            median_seconds=statistics.median(seconds),
            spread_seconds=spread,
            min_seconds=min(seconds),
            max_seconds=max(seconds),
            repetitions=len(seconds),
        )


_LEAD = 10  # reads of the cleared cache's size before a batch, about half a millisecond
_MAX_BATCH = 50


def time_call(
    call: Callable[[], object],
    *,
    device: torch.device,
    warmup: int = 2,
    min_repetitions: int = 5,
    min_seconds: float = 0.5,
) -> Timing:
    """Call ``call`` until it has run ``min_repetitions`` times and for ``min_seconds`` in all, and summarise.

    ``warmup`` calls come first and are not counted. On a CUDA device the clock is the device's own, the second-level
    cache is cleared before every call, and calls are queued behind other work, so that launching a call overlaps the
    work before it, as it does in a model. On a CPU caches are left as the previous call left them.
    """
    if min_repetitions < 1:
        raise ValueError(f"min_repetitions={min_repetitions} must be at least 1")
    for _ in range(warmup):
        call()
    clear = cache_clearer(device) if device.type == "cuda" else None
    samples: list[float] = []
    total = 0.0
    while len(samples) < min_repetitions or total < min_seconds:
        if clear is None:
            samples.append(_wall_seconds(call))
        else:
            samples += _cuda_seconds(call, clear, device, _next_batch(samples, min_repetitions, min_seconds - total))
        total = sum(samples)
    return Timing.from_samples(samples)


def time_launch(call: Callable[[], object], *, repetitions: int = 20) -> float:
    """Median seconds until ``call`` returns while the device has nothing else to do, its work not awaited."""
    samples = []
    for _ in range(repetitions):
        torch.cuda.synchronize()
        samples.append(_wall_seconds(call))
    return statistics.median(samples)


def _wall_seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _next_batch(samples: list[float], min_repetitions: int, seconds_left: float) -> int:
    """How many calls to queue: those that are likely left, within bounds."""
    if not samples:
        return min_repetitions
    left = seconds_left / max(statistics.median(samples), 1e-6)
    return max(1, min(_MAX_BATCH, math.ceil(left)))


def _cuda_seconds(
    call: Callable[[], object], clear: Callable[[], None], device: torch.device, count: int
) -> list[float]:
    with torch.cuda.device(device):
        pairs = [(_cuda_event(), _cuda_event()) for _ in range(count)]
        torch.cuda.synchronize()
        for _ in range(_LEAD):
            clear()
        for start, end in pairs:
            clear()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]


def _cuda_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
