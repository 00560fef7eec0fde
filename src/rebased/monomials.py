"""Packed monomials: the distinct products of ``degree`` entries of a vector, which are the features of ``s^degree``."""

import math
from functools import cache
from itertools import combinations_with_replacement

import torch
from jaxtyping import Float
from torch import Tensor


def num_monomials(feature_dim: int, degree: int) -> int:
    """The number of distinct monomials of ``degree`` in ``feature_dim`` variables: C(F + degree - 1, degree).

    Spelt out, because sizes may be symbols, which math.comb does not take.
    """
    count = 1
    for i in range(degree):
        count = count * (feature_dim + i) // (i + 1)  # a whole number at every step
    return count


def num_features(feature_dim: int, degrees: tuple[int, ...]) -> int:
    """E, the monomials of all ``degrees`` together."""
    return sum(num_monomials(feature_dim, degree) for degree in degrees)


def monomials(x: Float[Tensor, "*batch F"], degree: int) -> Float[Tensor, "*batch E"]:
    """The distinct monomials of ``degree``, ordered as ``combinations_with_replacement`` orders their indices.

    Those that begin with x_a are x_a times the monomials of one degree less in x_a, x_{a+1}, …, and these are the
    tail of that shorter list; so each degree is built from the one below by F products of slices.
    """
    if degree == 0:
        return torch.ones_like(x[..., :1])
    if degree == 1:
        return x
    lower = monomials(x, degree - 1)
    F = x.shape[-1]
    tails = (lower[..., lower.shape[-1] - num_monomials(F - a, degree - 1) :] for a in range(F))
    return torch.cat([x[..., a, None] * tail for a, tail in enumerate(tails)], dim=-1)


def monomial_weights(feature_dim: int, degree: int) -> tuple[float, ...]:
    """How often each monomial occurs in (x_1 + … + x_F)^degree: the multinomial coefficients, in the same order."""
    # Where torch.compile has made a symbol of a number, its range's length is the number again.
    weights: tuple[float, ...] = _constant_weights(len(range(feature_dim)), len(range(degree)))
    return weights


def _constant_weights(feature_dim: int, degree: int) -> tuple[float, ...]:
    return _cached_weights(feature_dim, degree)


# What torch.compiler.assume_constant_result does, without loading the compiler, which takes longer than all else here.
_constant_weights._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _cached_weights(feature_dim: int, degree: int) -> tuple[float, ...]:
    def weight(indices: tuple[int, ...]) -> float:
        repeats = (math.factorial(indices.count(a)) for a in set(indices))
        return float(math.factorial(degree) // math.prod(repeats))

    return tuple(map(weight, combinations_with_replacement(range(feature_dim), degree)))
