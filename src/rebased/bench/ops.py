"""`rebased bench ops`: the operator's backends beside softmax attention, over sequence length."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator

import torch

from rebased.bench.candidates import build_call
from rebased.bench.config import OpsBenchConfig
from rebased.bench.contention import ContentionMeter
from rebased.bench.environment import describe_environment
from rebased.bench.growth import growth_exponent
from rebased.bench.memory import peak_memory
from rebased.bench.results import CandidateGrowth, Measurement, OpsBenchResult
from rebased.bench.timing import time_call
from rebased.bench.verify import check_backend

__all__ = ["run_ops_bench"]

_logger = logging.getLogger(__name__)


def run_ops_bench(config: OpsBenchConfig, *, progress: Callable[[str], None] = _logger.info) -> OpsBenchResult:
    """Check every backend, then measure every candidate at every length.

    ``progress`` is told in words what comes next. Raises ValueError if ``config.device`` is not on this machine, and
    WrongBackendError, before anything is timed, if a backend is wrong. A candidate that is too long for its limit in
    ``config``, or for the device's memory, is recorded as skipped.
    """
    config.check_machine()
    contention = ContentionMeter()
    with _threads(config.threads):
        errors = {}
        for backend in config.backends:
            progress(f"checking {backend} against the float64 reference")
            errors[backend] = check_backend(
                backend,
                device=config.torch_device,
                dtype=config.torch_dtype,
                feature_dim=config.feature_dim,
                head_dim=config.head_dim,
                backward=config.backward,
                seed=config.seed,
            )
        measurements: list[Measurement] = []
        for length in config.lengths:
            row = []
            for candidate in config.candidates:
                progress(f"timing {candidate} at length {length}")
                row.append(_measure(candidate, length, config))
            measurements += _with_speedups(row)
        return OpsBenchResult(
            config=config,
            environment=describe_environment(config.torch_device),
            errors=errors,
            other_cpus=contention.other_cpus(),
            measurements=tuple(measurements),
            growth=tuple(_growth(candidate, measurements) for candidate in config.candidates),
        )


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _measure(candidate: str, length: int, config: OpsBenchConfig) -> Measurement:
    limits = {"reference": "max_reference_length", "sdpa": "max_sdpa_length"}
    if candidate in limits and length > getattr(config, limits[candidate]):
        reason = f"longer than {limits[candidate]}={getattr(config, limits[candidate])}"
        return Measurement(candidate=candidate, length=length, skipped=reason)
    try:
        call = build_call(candidate, length, config)
        call()  # warm-up for both: what a library allocates once and keeps is not this call's memory
        peak_bytes = peak_memory(call, device=config.torch_device)
        timing = time_call(
            call,
            device=config.torch_device,
            warmup=0,
            min_repetitions=config.min_repetitions,
            min_seconds=config.min_seconds,
        )
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return Measurement(candidate=candidate, length=length, skipped="out of device memory")
    return Measurement(candidate=candidate, length=length, timing=timing, peak_bytes=peak_bytes)


def _with_speedups(row: list[Measurement]) -> list[Measurement]:
    """One length's measurements, with their ratios to SDPA among them."""
    sdpa = next(measurement.timing for measurement in row if measurement.candidate == "sdpa")
    return [
        dataclasses.replace(each, speedup_over_sdpa=sdpa.median_seconds / each.timing.median_seconds)
        if sdpa and each.timing
        else each
        for each in row
    ]


def _growth(candidate: str, measurements: list[Measurement]) -> CandidateGrowth:
    mine = [each for each in measurements if each.candidate == candidate]
    times = [(each.length, each.timing.median_seconds) for each in mine if each.timing]
    peaks = [(each.length, float(each.peak_bytes)) for each in mine if each.peak_bytes]
    return CandidateGrowth(candidate=candidate, time_exponent=_exponent(times), memory_exponent=_exponent(peaks))


def _exponent(points: list[tuple[int, float]]) -> float | None:
    return growth_exponent([length for length, _ in points], [cost for _, cost in points])
