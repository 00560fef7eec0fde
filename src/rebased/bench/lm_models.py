"""Language models one after the other: every one at every length, compared with the first."""

import dataclasses
import gc
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

__all__ = ["measure_models"]

Measurement = TypeVar("Measurement")
"""A dataclass with ``tokens_per_second`` and ``speedup``."""


def measure_models(
    models: Sequence[str],
    lengths: Sequence[int],
    measure: Callable[[str, int], Measurement],
    describe: Callable[[str, int], str],
    progress: Callable[[str], None],
) -> tuple[Measurement, ...]:
    """What ``measure(model, length)`` finds, on a device that holds nothing of the one before."""
    found: list[Measurement] = []
    for length in lengths:
        row: list[Measurement] = []
        for name in models:
            progress(describe(name, length))
            gc.collect()
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            row.append(measure(name, length))
        found += [_with_speedup(each, row[0]) for each in row]
    return tuple(found)


def _with_speedup(measurement: Any, first: Any) -> Any:
    if measurement.tokens_per_second is None or first.tokens_per_second is None:
        return measurement
    return dataclasses.replace(measurement, speedup=measurement.tokens_per_second / first.tokens_per_second)
