"""How long one call takes until a device is done with it."""

import time
from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["seconds_of"]

T = TypeVar("T")


def seconds_of(call: Callable[[], T], device: torch.device) -> tuple[float, T]:
    """The seconds, and what the call returned."""
    _wait(device)
    start = time.perf_counter()
    result = call()
    _wait(device)
    return time.perf_counter() - start, result


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
