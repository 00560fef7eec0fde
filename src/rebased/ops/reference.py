"""Kernel attention as it is defined: every similarity of every query and key, quadratic in time and memory.

In float64 this is the oracle the other backends are held to. It shares with them the kernel's arithmetic and the
threshold below which a state's part of a normaliser is rounding error; with a single step also the division.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rebased.kernels import Kernel
from rebased.ops.normalize import divide, drop_rounding
from rebased.ops.positions import sequence_of
from rebased.ops.state import KernelState


def visible_keys(
    k: Float[Tensor, "B T Hk F"],
    *,
    causal: bool,
    key_mask: Bool[Tensor, "B T"] | None,
    cu_seqlens: Int[Tensor, " N1"] | None,
    at: Int[Tensor, "B P"] | None,
) -> Bool[Tensor, "B P T"]:
    """Which keys each query sees."""
    keys = torch.arange(k.shape[1], device=k.device)
    queries = keys.expand(k.shape[:2]) if at is None else at
    visible = torch.ones(*queries.shape, k.shape[1], dtype=torch.bool, device=k.device)
    if causal:
        visible = visible & (keys <= queries[..., None])
    if cu_seqlens is not None:
        visible = visible & (sequence_of(cu_seqlens, keys) == sequence_of(cu_seqlens, queries)[..., None])
    if key_mask is not None:
        visible = visible & key_mask[:, None]
    return visible


def attend(
    q: Float[Tensor, "B P H F"],
    k: Float[Tensor, "B T Hk F"],
    v: Float[Tensor, "B T Hk D"],
    kernel: Kernel,
    *,
    scale: float,
    eps: float,
    normalize: bool,
    causal: bool,
    key_mask: Bool[Tensor, "B T"] | None,
    state: KernelState | None,
    return_state: bool,
    cu_seqlens: Int[Tensor, " N1"] | None,
    at: Int[Tensor, "B P"] | None,
    positions: Int[Tensor, "B T"] | None,
) -> tuple[Float[Tensor, "B P H D"], Float[Tensor, "N Hk E D"] | None, Float[Tensor, "N Hk E"] | None]:
    """The output and, if asked for, Σ φ(k)vᵀ and Σ φ(k) over these keys. Inputs are float32 or float64."""
    if key_mask is not None:  # what a masked place holds may be anything, NaN included
        k = k.where(key_mask[..., None, None], 0)
        v = v.where(key_mask[..., None, None], 0)
    group = q.shape[2] // k.shape[2]
    k_per_query_head, v_per_query_head = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
    q_positions = positions if positions is None or at is None else positions.gather(1, at)
    visible = visible_keys(k, causal=causal, key_mask=key_mask, cu_seqlens=cu_seqlens, at=at)
    sim = kernel.similarity(q, k_per_query_head, q_positions, positions, scale=scale).masked_fill(~visible[:, None], 0)
    numerator = torch.einsum("bhts,bshd->bthd", sim, v_per_query_head)
    normalizer = sim.sum(dim=-1).transpose(1, 2)[..., None]  # (B, P, H, 1)
    if state is not None:
        features = kernel.query_features(q, q_positions, scale=scale).unflatten(2, (-1, group))  # (B, P, Hk, G, E)
        values, sums = _per_query(state.values, cu_seqlens, at, q), _per_query(state.normalizer, cu_seqlens, at, q)
        state_numerator = torch.einsum("btkge,btked->btkgd", features, values)
        state_normalizer = torch.einsum("btkge,btke->btkg", features, sums)[..., None]
        if normalize and kernel.nonnegative:
            magnitude = torch.einsum("btkge,btke->btkg", features.abs(), sums.abs())[..., None]
            state_numerator, state_normalizer = drop_rounding(state_numerator, state_normalizer, magnitude)
        numerator = numerator + state_numerator.flatten(2, 3)
        normalizer = normalizer + state_normalizer.flatten(2, 3)
    out = divide(numerator, normalizer, eps=eps, nonnegative=kernel.nonnegative) if normalize else numerator
    if not return_state:
        return out, None, None
    return out, *_key_sums(kernel.key_features(k, positions), v, key_mask, cu_seqlens)


def _per_query(sums: Tensor, cu_seqlens: Tensor | None, at: Tensor | None, q: Tensor) -> Tensor:
    """Each query's own state: (N, Hk, E, …) -> (B, P, Hk, E, …)."""
    if cu_seqlens is None:
        return sums[:, None].expand(-1, q.shape[1], *sums.shape[1:])
    places = torch.arange(q.shape[1], device=q.device)[None] if at is None else at
    return sums[sequence_of(cu_seqlens, places)]


def _key_sums(features: Tensor, v: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    if key_mask is not None:
        features = features.where(key_mask[..., None, None], 0)
    if cu_seqlens is None:
        return torch.einsum("bshe,bshd->bhed", features, v), features.sum(dim=1)
    owner = sequence_of(cu_seqlens, torch.arange(v.shape[1], device=v.device))
    members = (owner == torch.arange(cu_seqlens.shape[0] - 1, device=v.device)[:, None]).to(v.dtype)  # (N, T)
    values = torch.einsum("ns,she,shd->nhed", members, features[0], v[0])
    return values, torch.einsum("ns,she->nhe", members, features[0])
