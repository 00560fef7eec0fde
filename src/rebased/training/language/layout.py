"""How a step's sequences are spread over processes and micro-batches."""

import os
from dataclasses import dataclass

__all__ = ["MICRO_BATCH_TOKENS", "Layout", "TrainingProcesses", "current_processes", "make_layout"]

MICRO_BATCH_TOKENS = {"cuda": 32_768, "cpu": 4_096}
"""Of a micro-batch, unless its size is given: eight sequences of the paper's length, or one. A CPU is as fast with few,
and eight of the paper's model take more memory than most have."""


@dataclass(frozen=True)
class TrainingProcesses:
    """The processes that train together, as torchrun and accelerate tell each of them."""

    rank: int
    count: int
    are_launched: bool
    """Whether such a program started them; otherwise this is the only process."""

    @property
    def is_main(self) -> bool:
        """Whether this one prints and writes."""
        return self.rank == 0


@dataclass(frozen=True)
class Layout:
    """``batch_size = processes × micro_batch × accumulation``."""

    micro_batch: int
    accumulation: int


def current_processes() -> TrainingProcesses:
    rank, count = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    return TrainingProcesses(rank, count, are_launched="RANK" in os.environ and "WORLD_SIZE" in os.environ)


def make_layout(batch_size: int, micro_batch: int | None, *, seq_len: int, num_processes: int, device: str) -> Layout:
    """ValueError for what does not divide."""
    if batch_size % num_processes:
        raise ValueError(f"batch_size={batch_size} must be divisible by the number of processes, {num_processes}")
    share = batch_size // num_processes
    if micro_batch is None:
        fitting = max(1, min(share, MICRO_BATCH_TOKENS[device] // seq_len))
        micro_batch = next(size for size in range(fitting, 0, -1) if share % size == 0)
    if share % micro_batch:
        raise ValueError(f"micro_batch={micro_batch} must divide the sequences of a process in a step, {share}")
    return Layout(micro_batch, share // micro_batch)
