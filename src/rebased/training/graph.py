"""A computation on a GPU recorded once and played again: nothing is launched, or checked, by Python any more."""

import gc
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["RecordedCall"]

WARMUP_CALLS = 2
"""Compilers, and libraries that choose among their kernels, are done with it after the first."""


class RecordedCall:
    """``function(*inputs)`` for other inputs of the same shapes. What it returns is overwritten by the next call.

    Other tensors that the function reads must stay where they are in memory.
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
        self._inputs = [x.clone() for x in inputs]
        device = self._inputs[0].device
        with torch.cuda.device(device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARMUP_CALLS):
                    function(*self._inputs)
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            gc.collect()  # an old graph found during the recording would spoil it
            torch.cuda.empty_cache()  # a graph has memory of its own
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._outputs = function(*self._inputs)

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        for own, x in zip(self._inputs, inputs, strict=True):
            own.copy_(x)
        self._graph.replay()
        return self._outputs
