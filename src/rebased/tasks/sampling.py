"""Random choices in integers alone, so that every device makes the same ones."""

import math
from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor

from rebased.tasks.philox import random_words

__all__ = ["MAX_WEIGHT_BITS", "distinct_numbers", "random_numbers", "weighted_order"]

_LOG_BITS = 28
"""Of the fraction of logarithms in fixed point."""
_TABLE_BITS = 15
MAX_WEIGHT_BITS = 16
"""Weights of a `weighted_order` differ by a factor of 2¹⁶ at most: of their inverses, in 28 bits, 12 are left."""


def random_numbers(
    seed: int, examples: Int[Tensor, " N"], count: int, below: int, *, purpose: int, start: int = 0
) -> Int[Tensor, "N count"]:
    """Independent numbers in 0 .. below - 1, uniform up to below / 2³²."""
    return random_words(seed, examples, count, purpose=purpose, start=start) * below >> 32


def distinct_numbers(
    seed: int, examples: Int[Tensor, " N"], count: int, below: int, *, purpose: int
) -> Int[Tensor, "N count"]:
    """Numbers in 0 .. below - 1 drawn without replacement: the first distinct ones of a sequence with replacement."""
    if count > below:
        raise ValueError(f"count={count} distinct numbers below {below} do not exist")
    # After so many draws on average as many as wanted are distinct; the rest is for those that are less lucky.
    average = below * (math.log(below) - math.log(below - count + 1)) if count > 1 else 1
    num_draws = 4 * math.ceil((average + 4 * math.sqrt(average) + 8) / 4)
    draws = random_numbers(seed, examples, num_draws, below, purpose=purpose)
    while True:
        found, is_first = _first_ones(draws, count)
        if is_first.all():
            return found
        more = random_numbers(seed, examples, draws.shape[1], below, purpose=purpose, start=draws.shape[1])
        draws = torch.cat([draws, more], dim=1)


def _first_ones(draws: Int[Tensor, "N draws"], count: int) -> tuple[Tensor, Tensor]:
    """The first ``count`` distinct numbers of each row in order, and whether they are: a row may have fewer."""
    values, places = draws.sort(dim=1, stable=True)
    repeats = torch.zeros_like(values, dtype=torch.bool)
    repeats[:, 1:] = values[:, 1:] == values[:, :-1]
    is_repeat = torch.empty_like(repeats).scatter_(1, places, repeats)
    order = is_repeat.to(torch.int8).argsort(dim=1, stable=True)[:, :count]
    return draws.gather(1, order), ~is_repeat.gather(1, order)


def weighted_order(
    seed: int, examples: Int[Tensor, " N"], weights: tuple[float, ...], *, purpose: int
) -> Int[Tensor, "N G"]:
    """All indices, drawn one after another without replacement, each time with probability proportional to its weight.

    That is the order of arrival of independent exponential times with these rates: -log(u) / weight.
    """
    words = random_words(seed, examples, len(weights), purpose=purpose)
    slowness = _fixed_point_inverses(weights).to(examples.device)
    return (_minus_log2(words) * slowness).argsort(dim=1, stable=True)


@lru_cache
def _fixed_point_inverses(weights: tuple[float, ...]) -> Int[Tensor, " G"]:
    """1 / weight in 28 bits: products with a logarithm, of 6 bits before and 28 after the point, stay in int64."""
    largest = max(1 / weight for weight in weights)
    return torch.tensor([round(2**28 / (weight * largest)) for weight in weights])


def _minus_log2(words: Int[Tensor, "N G"]) -> Int[Tensor, "N G"]:
    """-log2((word + ½) / 2³²) in fixed point, to about 2⁻²⁸: by table, and straight lines in between."""
    odd = 2 * words + 1  # below 2³³; float64 holds it, so that taking it apart is exact
    mantissa, exponent = torch.frexp(odd.double())
    fraction = ((2 * mantissa - 1) * 2.0**33).long()  # odd / 2^(exponent - 1) - 1, of 33 bits
    rest_bits = 33 - _TABLE_BITS
    cell, rest = fraction >> rest_bits, fraction & ((1 << rest_bits) - 1)
    table = _log2_table().to(words.device)
    below, above = table[cell], table[cell + 1]
    logarithm = below + ((above - below) * rest >> rest_bits)
    return ((34 - exponent.long()) << _LOG_BITS) - logarithm


@lru_cache
def _log2_table() -> Int[Tensor, " cells1"]:
    """log2(1 + i / 2¹⁵) in fixed point."""
    cells = 1 << _TABLE_BITS
    return torch.tensor([round(math.log2(1 + i / cells) * 2**_LOG_BITS) for i in range(cells + 1)])
