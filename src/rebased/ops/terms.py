"""Similarity as a function of the score s = scale · qᵀk: Σ c_d s^d, and its slope.

Coefficients come per query row, (X, terms, R); ``None`` stands for ones.
"""

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from rebased.monomials import monomial_weights


def similarity(
    s: Float[Tensor, "*X R C"], degrees: tuple[int, ...], coefficients: Float[Tensor, "*X terms R"] | None
) -> Float[Tensor, "*X R C"]:
    """Σ c_d s^d."""
    return _weighted_powers(s, degrees, coefficients, factors=(1,) * len(degrees))


def similarity_slope(
    s: Float[Tensor, "*X R C"], degrees: tuple[int, ...], coefficients: Float[Tensor, "*X terms R"] | None
) -> Float[Tensor, "*X R C"]:
    """Σ d c_d s^(d-1)."""
    return _weighted_powers(s, tuple(degree - 1 for degree in degrees), coefficients, factors=degrees)


def coefficient_grads(
    s: Float[Tensor, "*X R C"], dsim: Float[Tensor, "*X R C"], degrees: tuple[int, ...]
) -> Float[Tensor, "*X terms R"]:
    """Gradient of each row's coefficients: Σ over keys of dsim · s^d."""
    return torch.stack([(dsim * _power(s, degree)).sum(dim=-1) for degree in degrees], dim=-2)


def feature_weights(feature_dim: int, degrees: tuple[int, ...], like: Tensor) -> Float[Tensor, "E 1"]:
    """The multinomial weights of all terms' features, as a column that multiplies a state."""
    return _feature_weights(feature_dim, degrees, like.dtype, like.device)


@lru_cache(maxsize=64)
def _feature_weights(feature_dim: int, degrees: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Kept: a copy to a device waits for it, and a CUDA graph cannot hold one."""
    weights = [weight for degree in degrees for weight in monomial_weights(feature_dim, degree)]
    return torch.tensor(weights, dtype=dtype, device=device)[:, None]


def _weighted_powers(
    s: Tensor, degrees: tuple[int, ...], coefficients: Tensor | None, factors: tuple[int, ...]
) -> Tensor:
    total: Tensor | None = None
    for index, (degree, factor) in enumerate(zip(degrees, factors, strict=True)):
        if factor == 0:
            continue
        term = _power(s, degree)
        if coefficients is not None:
            term = term * (coefficients.select(-2, index)[..., None] * factor)
        elif factor != 1:
            term = term * factor
        total = term if total is None else total + term
    return torch.zeros_like(s) if total is None else total


def _power(s: Tensor, degree: int) -> Tensor:
    """s^degree by squaring: torch's own power is a slow transcendental function from degree 4 on."""
    if degree == 0:
        return torch.ones_like(s)
    if degree == 1:
        return s
    half = _power(s, degree // 2)
    return half.square() if degree % 2 == 0 else half.square() * s
