"""`rebased bench mixers`: time and memory of whole layers, side by side."""

import copy
import dataclasses
import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch

from rebased.bench.cells import failure
from rebased.bench.memory import peak_memory
from rebased.bench.mixer_results import MixerBenchConfig, MixerBenchResult, MixerMeasurement
from rebased.bench.timing import time_call
from rebased.bench.verify import WrongBackendError, relative_rms_error
from rebased.layers import MIXERS, Mixer
from rebased.replay import Replay

__all__ = ["run_mixer_bench"]

MAX_ERROR = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""A layer of several products and a scan, relative to its output; Hyena's filter alone loses three digits."""

_logger = logging.getLogger(__name__)


def run_mixer_bench(config: MixerBenchConfig, *, progress: Callable[[str], None] = _logger.info) -> MixerBenchResult:
    """Check, time and weigh every mixer at every length. What fails is recorded as skipped with the reason.

    Raises ValueError if ``config.device`` is not on this machine.
    """
    measurements: list[MixerMeasurement] = []
    with config.measuring() as circumstances:
        for length in config.lengths:
            row = []
            for name in config.mixers:
                progress(f"{name} at {length} tokens")
                row.append(_measure(name, length, config))
            measurements += [_compared(each, row[0]) for each in row]
        return MixerBenchResult(**circumstances(), measurements=tuple(measurements))


def _measure(name: str, length: int, config: MixerBenchConfig) -> MixerMeasurement:
    device = config.torch_device
    try:
        mixer, call = _prepare(name, length, config)
        rounding = _check(mixer, length, config)
        peak = peak_memory(call, device=device)
        timing = time_call(
            Replay(call, device) if config.device == "cuda" else call,
            device=device,
            min_repetitions=config.min_repetitions,
            min_seconds=config.min_seconds,
        )
        state_bytes = mixer.state_bytes(length, dtype=config.torch_dtype)
    except Exception as error:
        return MixerMeasurement(mixer=name, length=length, skipped=failure(error))
    return MixerMeasurement(
        mixer=name, length=length, error=rounding, timing=timing, peak_bytes=peak, state_bytes=state_bytes
    )


def _prepare(name: str, length: int, config: MixerBenchConfig) -> tuple[Mixer, Callable[[], object]]:
    torch.manual_seed(config.seed)
    options = {"seq_len": length} if "seq_len" in inspect.signature(MIXERS[name]).parameters else {}
    mixer = MIXERS[name](config.d_model, **options).to(config.torch_device, config.torch_dtype)
    x = torch.randn(config.batch_size, length, config.d_model).to(config.torch_device, config.torch_dtype)
    leaves = [x.requires_grad_(), *mixer.parameters()]
    grad = torch.randn_like(x)

    def forward() -> object:
        with torch.no_grad():
            return mixer(x)

    def both() -> object:
        return torch.autograd.grad(mixer(x), leaves, grad)

    return mixer, forward if config.passes == "forward" else both


def _check(mixer: Mixer, length: int, config: MixerBenchConfig) -> float:
    """Relative RMS error against the same layer in float64 on the CPU; WrongBackendError if it is not just rounding."""
    generator = torch.Generator().manual_seed(config.seed)
    x = torch.randn(2, min(length, 128), config.d_model, generator=generator).to(config.torch_dtype)
    with torch.no_grad():
        reference: Any = copy.deepcopy(mixer).to("cpu", torch.float64)
        expected = reference(x.double())
        actual = mixer(x.to(config.torch_device)).to("cpu", torch.float64)
    error = relative_rms_error(actual, expected)
    if not error <= MAX_ERROR[config.torch_dtype]:
        raise WrongBackendError(f"the error against float64 is {error:.1e}")
    return error


def _compared(measurement: MixerMeasurement, first: MixerMeasurement) -> MixerMeasurement:
    if measurement.timing is None or first.timing is None or not measurement.peak_bytes or not first.peak_bytes:
        return measurement
    return dataclasses.replace(
        measurement,
        time_ratio=measurement.timing.median_seconds / first.timing.median_seconds,
        memory_ratio=measurement.peak_bytes / first.peak_bytes,
    )
