"""How much memory a call needs on top of what was allocated before it."""

from collections.abc import Callable, Iterable

import torch
from torch.autograd.profiler import profile

__all__ = ["peak_memory"]


def peak_memory(call: Callable[[], object], *, device: torch.device) -> int:
    """Peak bytes of tensor memory that one ``call`` holds at a time, its result included, beyond what existed before.

    Exact, not sampled: on a CUDA device from the caching allocator's high-water mark, on a CPU from the allocations
    and releases that torch's allocator reports to the profiler. Not seen on a CPU: the scratch space that a library
    (MKL, oneDNN) takes from the system itself, and memory allocated before ``call`` that it frees.
    """
    return _cuda_peak(call, device) if device.type == "cuda" else _cpu_peak(call)


def _cuda_peak(call: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = call()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    del result
    return peak


def _cpu_peak(call: Callable[[], object]) -> int:
    with profile(profile_memory=True) as profiler:
        result = call()
    del result
    # The per-operator events of the public tables fold an operator's allocations into one number; only the raw
    # events say when each one happened. They have had these names since torch 2.3 (read with 2.6, 2.11 and 2.13).
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return _running_maximum(event.nbytes() for event in events)


def _running_maximum(changes: Iterable[int]) -> int:
    held = peak = 0
    for change in changes:
        held += change
        peak = max(peak, held)
    return peak
