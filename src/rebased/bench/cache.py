"""A GPU's cache, emptied between timed calls."""

from collections.abc import Callable

import torch

__all__ = ["cache_clearer"]

_CACHES = 4  # the buffer's size in caches: lines may be kept twice, and are not replaced strictly in order


def cache_clearer(device: torch.device) -> Callable[[], None]:
    """A function that queues the reading of more memory than the second-level cache of ``device`` holds.

    In a model other layers run between two calls of one, so a call finds none of its inputs in the cache. Reading
    leaves lines that are simply dropped; writing, as zero_() does, would leave some that the next call must first
    wait for to be written back.
    """
    size = _CACHES * torch.cuda.get_device_properties(device).L2_cache_size
    buffer = torch.zeros(size // 4, dtype=torch.float32, device=device)
    total = torch.zeros((), dtype=torch.float32, device=device)

    def clear() -> None:
        torch.sum(buffer, dim=0, out=total)

    return clear
