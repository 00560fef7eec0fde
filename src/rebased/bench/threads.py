"""How many threads torch's CPU operators run on."""

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["threads"]


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Run torch's CPU operators on ``count`` threads; None leaves its setting."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
