"""A bench's result with round numbers, for tests of what shows it."""

import dataclasses
from typing import Any

import torch

from rebased.bench.config import OpsBenchConfig
from rebased.bench.limit import Limit
from rebased.bench.rates import Rates
from rebased.bench.results import CandidateGrowth, Measurement, OpsBenchResult
from rebased.bench.timing import Timing
from rebased.environment import describe_environment


def timing(milliseconds: float) -> Timing:
    return Timing.from_samples([milliseconds / 1e3])


def small_result(passes: tuple[str, ...] = ("forward",), **changes: Any) -> OpsBenchResult:
    """Chunked at 512 and 1024 tokens in 5 and 12.5 ms, SDPA at 512 in 10 ms; "both" takes twice as long."""
    config = OpsBenchConfig(backends=("chunked",), lengths=(512, 1024), max_sdpa_length=512, passes=passes)
    rows: dict[str, list[Any]] = {"limits": [], "measurements": [], "growth": []}
    for each in passes:
        factor = 1 if each == "forward" else 2
        rows["limits"] += [_limit(length, each, factor) for length in config.lengths]
        rows["measurements"] += _measurements(each, factor)
        rows["growth"] += [
            CandidateGrowth(candidate="chunked", passes=each, time_exponent=1.3219, memory_exponent=1.0),
            CandidateGrowth(candidate="sdpa", passes=each, time_exponent=None, memory_exponent=None),
        ]
    result = OpsBenchResult(
        config=config,
        environment=describe_environment(torch.device("cpu")),
        errors={"chunked": 0.0},
        other_cpus=None,
        rates=Rates(bytes_per_second=2e10, flops_per_second=1e11),
        accuracy=(),
        **{name: tuple(row) for name, row in rows.items()},
    )
    return dataclasses.replace(result, **changes)


def _limit(length: int, passes: str, factor: int) -> Limit:
    seconds = length * 1e-6 * factor
    return Limit(
        length=length,
        passes=passes,
        seconds=seconds,
        num_bytes=1,
        memory_seconds=seconds,
        flops=1,
        compute_seconds=seconds,
    )


def _measurements(passes: str, factor: int) -> list[Measurement]:
    def at(candidate: str, length: int, **found: Any) -> Measurement:
        return Measurement(candidate=candidate, length=length, passes=passes, **found)

    return [
        at(
            "chunked",
            512,
            timing=timing(5 * factor),
            peak_bytes=2**20,
            speedup_over_sdpa=2.0,
            limit_fraction=0.1024,
        ),
        at("sdpa", 512, timing=timing(10 * factor), peak_bytes=2**21, speedup_over_sdpa=1.0),
        at("chunked", 1024, timing=timing(12.5 * factor), peak_bytes=2**21, limit_fraction=0.08192),
        at("sdpa", 1024, skipped="longer than max_sdpa_length=512"),
    ]
