"""Keys, their values, and filler: what the recall tasks are made of."""

import torch
from jaxtyping import Int
from torch import Tensor

from rebased.tasks.sampling import distinct_numbers, random_numbers

__all__ = ["FILLER", "KEYS", "ORDER", "OTHERS", "VALUES", "draw_pairs", "fill", "interleaved"]

FILLER = 0
"""The token that stands where nothing is said."""

# What an example's random numbers are for; each purpose has a sequence of its own.
KEYS, VALUES, ORDER, OTHERS = range(4)


def draw_pairs(
    seed: int, examples: Int[Tensor, " N"], num_pairs: int, vocab_size: int
) -> tuple[Int[Tensor, "N P"], Int[Tensor, "N P"]]:
    """Distinct keys from 1 .. V/2 - 1, and distinct values from V/2 .. V - 1."""
    half = vocab_size // 2
    keys = 1 + distinct_numbers(seed, examples, num_pairs, half - 1, purpose=KEYS)
    values = half + distinct_numbers(seed, examples, num_pairs, vocab_size - half, purpose=VALUES)
    return keys, values


def interleaved(keys: Int[Tensor, "N P"], values: Int[Tensor, "N P"]) -> Int[Tensor, "N P2"]:
    """Each key with its value after it: k₁ v₁ k₂ v₂ and so on."""
    return torch.stack([keys, values], dim=2).flatten(1)


def fill(
    inputs: Int[Tensor, "N L"], seed: int, examples: Int[Tensor, " N"], vocab_size: int, *, at_random: bool
) -> Int[Tensor, "N L"]:
    """With random tokens where the filler stands, if asked for."""
    if not at_random:
        return inputs
    others = random_numbers(seed, examples, inputs.shape[1], vocab_size, purpose=OTHERS)
    return inputs.where(inputs != FILLER, others)
