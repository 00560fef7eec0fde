"""Monomial features laid out for matrix products: feature before time, written in place, with their backward.

`rebased.monomials` defines the features and their order, differentiably, for single vectors. Here a whole tile of
columns (X, F, C) is expanded to (X, E, C): every product is then between rows that are contiguous in memory, and the
buffer is written once. ``coefficients`` (X, terms, C) scale each term; ``None`` stands for ones.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from rebased.monomials import num_features, num_monomials


def expand(
    x: Float[Tensor, "*X F C"], degrees: tuple[int, ...], coefficients: Float[Tensor, "*X terms C"] | None = None
) -> Float[Tensor, "*X E C"]:
    """The features of every column, the terms one after another."""
    if degrees == (1,):
        return x if coefficients is None else x * coefficients
    F = x.shape[-2]
    features = x.new_empty(*x.shape[:-2], num_features(F, degrees), x.shape[-1])
    start = 0
    for index, degree in enumerate(degrees):
        block = features.narrow(-2, start, num_monomials(F, degree))
        start += block.shape[-2]
        coefficient = None if coefficients is None else coefficients.narrow(-2, index, 1)
        if degree == 0:
            block.copy_(torch.ones_like(block) if coefficient is None else coefficient)
        else:
            # Scaling one factor of each product scales the product: F rows of work instead of E.
            _write_monomials(block, x, degree, leading=x if coefficient is None else x * coefficient)
    return features


def contract(
    x: Float[Tensor, "*X F C"],
    grad: Float[Tensor, "*X E C"],
    degrees: tuple[int, ...],
    coefficients: Float[Tensor, "*X terms C"] | None = None,
) -> tuple[Float[Tensor, "*X F C"], Float[Tensor, "*X terms C"]]:
    """The backward of `expand`: the gradients of ``x`` and of the coefficients.

    A term of degree d is homogeneous, so by Euler's theorem x · ∂/∂x of it is d times the term itself: the
    coefficient's gradient is read off the gradient of x without touching the features again.
    """
    F = x.shape[-2]
    dx = torch.zeros_like(x)
    dcoefficients = x.new_empty(*x.shape[:-2], len(degrees), x.shape[-1])
    start = 0
    for index, degree in enumerate(degrees):
        block = grad.narrow(-2, start, num_monomials(F, degree))
        start += block.shape[-2]
        if degree == 0:
            dcoefficients.narrow(-2, index, 1).copy_(block)
            continue
        term_dx = _monomials_backward(x, block, degree)
        torch.sum(x * term_dx, dim=-2, out=dcoefficients.select(-2, index)).div_(degree)
        dx += term_dx if coefficients is None else term_dx * coefficients.narrow(-2, index, 1)
    return dx, dcoefficients


def _write_monomials(out: Tensor, x: Tensor, degree: int, *, leading: Tensor) -> None:
    """Write the monomials of ``degree`` >= 1 into ``out``, their first factor taken from ``leading``."""
    if degree == 1:
        out.copy_(leading)
        return
    F = x.shape[-2]
    lower = _monomials(x, degree - 1)
    start = 0
    for a in range(F):
        tail = _tail(lower, F - a, degree - 1)
        torch.mul(leading.narrow(-2, a, 1), tail, out=out.narrow(-2, start, tail.shape[-2]))
        start += tail.shape[-2]


def _monomials(x: Tensor, degree: int) -> Tensor:
    if degree == 1:
        return x
    out = x.new_empty(*x.shape[:-2], num_monomials(x.shape[-2], degree), x.shape[-1])
    _write_monomials(out, x, degree, leading=x)
    return out


def _monomials_backward(x: Tensor, grad: Tensor, degree: int) -> Tensor:
    """The gradient of x for ``grad`` of its monomials of ``degree`` >= 1."""
    if degree == 1:
        return grad
    F = x.shape[-2]
    lower = _monomials(x, degree - 1)
    dx = torch.zeros_like(x)
    dlower = dx if degree == 2 else torch.zeros_like(lower)
    start = 0
    for a in range(F):
        tail = _tail(lower, F - a, degree - 1)
        block = grad.narrow(-2, start, tail.shape[-2])
        start += tail.shape[-2]
        dx.select(-2, a).add_((block * tail).sum(dim=-2))
        _tail(dlower, F - a, degree - 1).addcmul_(block, x.narrow(-2, a, 1))
    return dx if degree == 2 else dx + _monomials_backward(x, dlower, degree - 1)


def _tail(lower: Tensor, num_variables: int, degree: int) -> Tensor:
    """The monomials of ``degree`` in the last ``num_variables`` variables only."""
    size = num_monomials(num_variables, degree)
    return lower.narrow(-2, lower.shape[-2] - size, size)
