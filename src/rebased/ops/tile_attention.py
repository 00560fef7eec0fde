"""Attention of tiles of queries to one state and one chunk of keys each, forward and backward.

Everything here is a batch over X tiles and Hk key heads; the G query heads of a key head lie side by side in the rows
R. Queries and keys are columns, (X, Hk, F, R) and (X, Hk, F, C), which is how their features are built; queries are
already scaled. Values carry a last column of ones (D1 = D + 1), so numerators end in the normaliser.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rebased.ops.dtypes import rounding
from rebased.ops.expansion import contract, expand
from rebased.ops.terms import coefficient_grads, feature_weights, similarity, similarity_slope


@dataclass(frozen=True, kw_only=True)
class TileInputs:
    """What a batch of tiles works on. A missing ``state`` is zero; without ``keys`` there is only the state."""

    degrees: tuple[int, ...]
    q: Float[Tensor, "X Hk F R"]
    coefficients: Float[Tensor, "X Hk terms R"] | None
    state: Float[Tensor, "X Hk E D1"] | None
    keys: Float[Tensor, "X Hk F C"] | None
    values: Float[Tensor, "X Hk C D1"] | None
    visible: Bool[Tensor, "#X #Hk R C"] | None
    """Which keys a row sees; ``None``: all."""
    nonnegative: bool
    """Whether the kernel is, and its sums are to be normalised: what rounds below zero then counts as zero."""


@dataclass(frozen=True, kw_only=True)
class TileGrads:
    """Of what `TileInputs` has; None of what is not there, and of coefficients that were not asked for."""

    q: Float[Tensor, "X Hk F R"]
    coefficients: Float[Tensor, "X Hk terms R"] | None
    state: Float[Tensor, "X Hk E D1"] | None
    keys: Float[Tensor, "X Hk F C"] | None
    values: Float[Tensor, "X Hk C D1"] | None


def attend(t: TileInputs) -> Float[Tensor, "X Hk R D1"]:
    """Numerators: Σ sim(q, k) v over the state and the visible keys."""
    numerators = None
    if t.state is not None:
        features, state = expand(t.q, t.degrees, t.coefficients), _weighted(t)
        numerators = features.mT @ state
        if t.nonnegative:
            numerators.masked_fill_(_is_rounding_error(features, state, numerators[..., -1:]), 0)
    if t.keys is not None and t.values is not None:
        sim = _hide(_clamp(t, similarity(t.q.mT @ t.keys, t.degrees, t.coefficients)), t.visible)
        numerators = sim @ t.values if numerators is None else numerators + sim @ t.values
    assert numerators is not None, "a tile needs a state or keys"
    return numerators


def attend_backward(t: TileInputs, dnumerators: Float[Tensor, "X Hk R D1"], *, coefficients: bool) -> TileGrads:
    """All gradients of `attend`; those of the coefficients only if asked for."""
    dq = torch.zeros_like(t.q)
    dcoefficients = dstate = dkeys = dvalues = None
    if t.state is not None:
        features, state = expand(t.q, t.degrees, t.coefficients), _weighted(t)
        through_state = dnumerators
        if t.nonnegative:
            dropped = _is_rounding_error(features, state, features.mT @ state[..., -1:])
            through_state = dnumerators.masked_fill(dropped, 0)
        dstate = features @ through_state
        if t.degrees != (1,):
            dstate.mul_(feature_weights(t.q.shape[-2], t.degrees, t.q))
        dq, dcoefficients = contract(t.q, state @ through_state.mT, t.degrees, t.coefficients)
    if t.keys is not None and t.values is not None:
        s = t.q.mT @ t.keys
        sim = similarity(s, t.degrees, t.coefficients)
        slope = similarity_slope(s, t.degrees, t.coefficients)
        if _may_round_below_zero(t):
            slope.masked_fill_(sim < 0, 0)
        dvalues = _hide(_clamp(t, sim), t.visible).mT @ dnumerators
        dsim = _hide(dnumerators @ t.values.mT, t.visible)
        if coefficients:
            direct = coefficient_grads(s, dsim, t.degrees)
            dcoefficients = direct if dcoefficients is None else dcoefficients + direct
        ds = dsim.mul_(slope)
        dq = dq + t.keys @ ds.mT
        dkeys = t.q @ ds
    return TileGrads(
        q=dq, coefficients=dcoefficients if coefficients else None, state=dstate, keys=dkeys, values=dvalues
    )


def normalizers(numerators: Float[Tensor, "X Hk R D1"], *, eps: float, nonnegative: bool) -> Float[Tensor, "X Hk R 1"]:
    """What the numerators are divided by: their last column plus eps.

    For a non-negative kernel a sum of zero means that every similarity is zero. The output is then 0: inf is returned.
    """
    normalizer = numerators[..., -1:]
    return torch.where(normalizer > 0, normalizer + eps, torch.inf) if nonnegative else normalizer + eps


def _clamp(t: TileInputs, sim: Tensor) -> Tensor:
    return sim.clamp(min=0) if _may_round_below_zero(t) else sim


def _may_round_below_zero(t: TileInputs) -> bool:
    """A sum of several terms can, near its root, and so can a product of features; a single even power cannot."""
    return t.nonnegative and (len(t.degrees) > 1 or t.degrees == (1,))


def _is_rounding_error(
    features: Float[Tensor, "X Hk E R"], state: Float[Tensor, "X Hk E D1"], normalizer: Float[Tensor, "X Hk R 1"]
) -> Bool[Tensor, "X Hk R 1"]:
    """Where the part of the normaliser that comes from the state is zero up to rounding.

    A zero arrives there as products that cancel, i.e. as rounding error of either sign, and in the numerators too:
    their quotient could be anything. Features that are never negative do not cancel, and never count as zero here.
    """
    magnitude = features.abs().mT @ state[..., -1:].abs()
    return normalizer <= magnitude * rounding(normalizer.dtype)


def _weighted(t: TileInputs) -> Tensor:
    assert t.state is not None
    return t.state if t.degrees == (1,) else t.state * feature_weights(t.q.shape[-2], t.degrees, t.q)


def _hide(sim: Tensor, visible: Tensor | None) -> Tensor:
    return sim if visible is None else sim.masked_fill_(~visible, 0)
