"""A computation on a GPU recorded once as a CUDA graph and played again: nothing is launched, or checked, by Python."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor

__all__ = ["Replay", "as_recorded", "is_capturing", "is_recorded"]

WARMUP_CALLS = 2
"""Compilers, and libraries that choose among their kernels, are done with it after the first."""

T = TypeVar("T")


class Replay(Generic[T]):
    """Does what ``function()`` did when it was recorded, to the same memory; what it returned is overwritten.

    Tensors that the function reads must stay where they are, and alive: the function itself is not kept, as it often
    belongs to whoever keeps this. RuntimeError if it waits for the device or copies from the host, which no graph can
    hold.
    """

    def __init__(self, function: Callable[[], T], device: torch.device) -> None:
        with torch.cuda.device(device), as_recorded():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARMUP_CALLS):
                    function()
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            gc.collect()  # an old graph found during the recording would spoil it
            torch.cuda.empty_cache()  # a graph has memory of its own
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._result = function()

    def __call__(self) -> T:
        self._graph.replay()
        return self._result


_LOCK = threading.Lock()
_num_recorders = 0


@contextmanager
def as_recorded() -> Iterator[None]:
    """In here operators act as if a graph were being recorded: they never wait for the device, and may use more memory.

    This holds for all threads, because those of autograd cannot know which thread waits for them.
    """
    global _num_recorders
    with _LOCK:
        _num_recorders += 1
    try:
        yield
    finally:
        with _LOCK:
            _num_recorders -= 1


def is_capturing(x: Tensor) -> bool:
    """Whether operations on the tensor are being recorded now, by whomever. Its numbers cannot be read then."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def is_recorded(x: Tensor) -> bool:
    """Whether operations on it are being recorded, or are to be done as if they were (`as_recorded`)."""
    return _num_recorders > 0 or is_capturing(x)
