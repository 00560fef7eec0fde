"""In which order a run sees its examples: a function of its seed and the epoch alone."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from rebased.tasks.philox import random_words

__all__ = ["epoch_order"]

_PURPOSE = 1000
"""Apart from what tasks draw with the same seed."""


def epoch_order(seeds: Sequence[int], epoch: int, size: int, device: torch.device | str) -> Int[Tensor, "R size"]:
    """A permutation of 0 .. size - 1 for each seed, the same on every device."""
    epochs = torch.tensor([epoch], device=device)
    words = [random_words(seed, epochs, size, purpose=_PURPOSE) for seed in seeds]
    return torch.cat(words).argsort(dim=1, stable=True)
