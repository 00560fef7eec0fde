"""Language models one after the other: every one at every length, compared with the first."""

import dataclasses
import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["measure_models"]


def measure_models(
    config: Any, lengths: Sequence[int], measure: Callable[[str, int], Any], progress: Callable[[str], None]
) -> dict[str, Any]:
    """What ``measure(model, length)`` finds, on a device that holds nothing of the one before: a result's fields.

    Measurements have ``tokens_per_second`` and ``speedup``. Raises ValueError if ``config.device`` is not on this
    machine.
    """
    found: list[Any] = []
    with config.measuring() as circumstances:
        for length in lengths:
            row: list[Any] = []
            for name in config.models:
                progress(f"{name}, {length} tokens")
                gc.collect()
                if config.device == "cuda":
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                row.append(measure(name, length))
            found += [_with_speedup(each, row[0]) for each in row]
        return circumstances() | {"measurements": tuple(found)}


def _with_speedup(measurement: Any, first: Any) -> Any:
    if measurement.tokens_per_second is None or first.tokens_per_second is None:
        return measurement
    return dataclasses.replace(measurement, speedup=measurement.tokens_per_second / first.tokens_per_second)
