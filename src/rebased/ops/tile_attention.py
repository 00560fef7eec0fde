"""Attention of tiles of queries to one state and one chunk of keys each, forward and backward.

Everything here is a batch over X tiles and Hk key heads; the G query heads of a key head lie side by side in the rows
R. Queries and keys are columns, (X, Hk, F, R) and (X, Hk, F, C), which is how their features are built; queries are
already scaled. Values carry a last column of ones (D1 = D + 1), so numerators end in the normaliser.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rebased.ops.expansion import contract, expand
from rebased.ops.terms import coefficient_grads, feature_weights, rounding_floor, similarity, similarity_slope


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


@dataclass(frozen=True, kw_only=True)
class TileGrads:
    q: Float[Tensor, "X Hk F R"]
    coefficients: Float[Tensor, "X Hk terms R"] | None
    state: Float[Tensor, "X Hk E D1"] | None
    keys: Float[Tensor, "X Hk F C"] | None
    values: Float[Tensor, "X Hk C D1"] | None


def attend(t: TileInputs) -> Float[Tensor, "X Hk R D1"]:
    """Numerators: Σ sim(q, k) v over the state and the visible keys."""
    numerators = None
    if t.state is not None:
        numerators = expand(t.q, t.degrees, t.coefficients).mT @ _weighted(t)
    if t.keys is not None and t.values is not None:
        sim = _hide(similarity(t.q.mT @ t.keys, t.degrees, t.coefficients), t.visible)
        numerators = sim @ t.values if numerators is None else numerators + sim @ t.values
    assert numerators is not None, "a tile needs a state or keys"
    return numerators


def attend_backward(t: TileInputs, dnumerators: Float[Tensor, "X Hk R D1"], *, coefficients: bool) -> TileGrads:
    """All gradients of `attend`; those of the coefficients only if asked for."""
    dq = torch.zeros_like(t.q)
    dcoefficients = dstate = dkeys = dvalues = None
    if t.state is not None:
        weights = feature_weights(t.q.shape[-2], t.degrees, t.q)
        dstate = weights * (expand(t.q, t.degrees, t.coefficients) @ dnumerators)
        dfeatures = _weighted(t) @ dnumerators.mT
        dq, dcoefficients = contract(t.q, dfeatures, t.degrees, t.coefficients)
    if t.keys is not None and t.values is not None:
        s = t.q.mT @ t.keys
        dvalues = _hide(similarity(s, t.degrees, t.coefficients), t.visible).mT @ dnumerators
        dsim = _hide(dnumerators @ t.values.mT, t.visible)
        if coefficients:
            direct = coefficient_grads(s, dsim, t.degrees)
            dcoefficients = direct if dcoefficients is None else dcoefficients + direct
        ds = dsim.mul_(similarity_slope(s, t.degrees, t.coefficients))
        dq = dq + t.keys @ ds.mT
        dkeys = t.q @ ds
    return TileGrads(
        q=dq, coefficients=dcoefficients if coefficients else None, state=dstate, keys=dkeys, values=dvalues
    )


def normalizers(
    t: TileInputs, numerators: Float[Tensor, "X Hk R D1"], *, eps: float, nonnegative: bool
) -> Float[Tensor, "X Hk R 1"]:
    """What the numerators are divided by: their last column plus eps.

    For a non-negative kernel a normaliser of zero means that every similarity is zero, and the output is then 0:
    inf is returned. Through a state, zero comes out as rounding error of either sign, and so do the numerators; their
    quotient could be anything. So a normaliser within rounding error of zero counts as zero.
    """
    normalizer = numerators[..., -1:]
    if not nonnegative:
        return normalizer + eps
    floor = torch.zeros_like(normalizer)
    if t.state is not None and t.degrees != (1,):  # features of degree 1 are a feature map's: never negative
        floor = rounding_floor(t.q, t.state[..., -1], t.degrees, t.coefficients)[..., None]
    return torch.where(normalizer > floor, normalizer + eps, torch.inf)


def _weighted(t: TileInputs) -> Tensor:
    assert t.state is not None
    return t.state if t.degrees == (1,) else t.state * feature_weights(t.q.shape[-2], t.degrees, t.q)


def _hide(sim: Tensor, visible: Tensor | None) -> Tensor:
    return sim if visible is None else sim.masked_fill_(~visible, 0)
