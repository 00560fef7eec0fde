"""A call recorded once as a CUDA graph and replayed: no launches, as decoding loops are run."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["Replay", "record"]


@dataclass(frozen=True)
class Replay:
    """Runs what ``call`` ran when it was recorded, on the same memory, which ``call`` keeps alive."""

    graph: torch.cuda.CUDAGraph
    call: Callable[[], object]

    def __call__(self) -> None:
        self.graph.replay()


def record(call: Callable[[], object], device: torch.device) -> Replay:
    """Record ``call``; RuntimeError if it waits for the device or copies from the host, which no graph can hold."""
    with torch.cuda.device(device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compiles, and allocates what is kept; capture allows neither
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
    return Replay(graph, call)
