"""Copying: repeat a string after a marker (Jelassi et al. 2024, "Repeat After Me")."""

import torch
from jaxtyping import Int
from torch import Tensor

from rebased.tasks.checks import check_examples
from rebased.tasks.examples import Examples, in_blocks
from rebased.tasks.pairs import KEYS
from rebased.tasks.sampling import random_numbers

__all__ = ["copying"]

MARKER = 0


def copying(
    num_examples: int,
    seq_len: int,
    *,
    vocab_size: int = 32,
    seed: int = 0,
    first_example: int = 0,
    device: torch.device | str = "cpu",
) -> Examples:
    """A random string of seq_len / 2 tokens, the marker 0, and the string again without its last token.

    From the marker on, each label is the token to come::

        inputs  4 9 2 0 4 9
        labels  . . . 4 9 2
    """
    check_examples(num_examples, first_example, seed)
    if seq_len % 2 or seq_len < 2:
        raise ValueError(f"seq_len={seq_len} must be even and at least 2")
    if vocab_size < 2:
        raise ValueError(f"vocab_size={vocab_size} must be at least 2: the marker and one more")
    length = seq_len // 2

    def make(examples: Int[Tensor, " M"]) -> Examples:
        string = 1 + random_numbers(seed, examples, length, vocab_size - 1, purpose=KEYS)
        marker = torch.full_like(string[:, :1], MARKER)
        positions = torch.arange(length, seq_len, device=examples.device).expand(len(examples), length)
        return Examples(torch.cat([string, marker, string[:, :-1]], dim=1), positions, string)

    return in_blocks(make, num_examples, first_example, numbers_each=2 * seq_len, device=device)
