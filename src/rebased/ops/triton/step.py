"""One token of decoding in one launch: the output of the state and the token, and the state with the token absorbed."""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from jaxtyping import Int
from torch import Tensor

from rebased.ops.triton.launch import launch

MAX_FEATURE_DIM = 64
MAX_HEAD_DIM = 256
_ELEMENTS = 4096
"""Of a state, how many a program holds at a time."""


@triton.jit
def step_kernel(
    q,
    k,
    v,
    out,
    key_mask,
    coefficients,
    pairs,
    values,
    normalizer,
    count,
    values_residual,
    normalizer_residual,
    new_values,
    new_normalizer,
    new_count,
    new_values_residual,
    new_normalizer_residual,
    q_batch,
    k_batch,
    v_batch,
    c_batch,
    num_key_heads,
    scale,
    eps,
    Q_HEAD: tl.constexpr,
    K_HEAD: tl.constexpr,
    V_HEAD: tl.constexpr,
    GROUP: tl.constexpr,
    F: tl.constexpr,
    FP: tl.constexpr,
    E: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    ROWS: tl.constexpr,
    TERM0: tl.constexpr,
    TERM1: tl.constexpr,
    TERM2: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_COEFFICIENTS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    NORMALIZE: tl.constexpr,
    NONNEGATIVE: tl.constexpr,
    ROUNDING: tl.constexpr,
):
    """One program: one sequence and key head, with the query heads that share it.

    ``pairs`` (2, E) holds the two factors of each feature, F standing for the number 1. A program may write where it
    reads: the last of its query heads is the one that writes.
    """
    sequence = (tl.program_id(0) // num_key_heads).to(tl.int64)
    key_head = tl.program_id(0) % num_key_heads
    f = tl.arange(0, FP)
    d = tl.arange(0, DP)
    is_real = True
    if HAS_MASK:
        is_real = tl.load(key_mask + sequence) != 0
    k += sequence * k_batch + key_head * K_HEAD
    v += sequence * v_batch + key_head * V_HEAD
    key = tl.load(k + f, mask=(f < F) & is_real, other=0.0).to(tl.float32)
    value = tl.load(v + d, mask=(d < D) & is_real, other=0.0).to(tl.float32)
    at_state = sequence * num_key_heads + key_head
    for member in range(GROUP):
        head = key_head * GROUP + member
        q_head = q + sequence * q_batch + head * Q_HEAD
        query = tl.load(q_head + f, mask=f < F, other=0.0).to(tl.float32)
        k0 = 1.0
        k1 = scale
        k2 = scale * scale
        if HAS_COEFFICIENTS:
            c = coefficients + sequence * c_batch + head * (TERM0 + TERM1 + TERM2)
            if TERM0:
                k0 = tl.load(c)
            if TERM1:
                k1 *= tl.load(c + TERM0)
            if TERM2:
                k2 *= tl.load(c + TERM0 + TERM1)
        s = tl.sum(query * key, axis=0)
        own = s * 0.0
        if TERM0:
            own += k0
        if TERM1:
            own += k1 * s
        if TERM2:
            own += k2 * s * s
        if NONNEGATIVE:
            own = tl.maximum(own, 0.0)
        if HAS_MASK:
            own = tl.where(is_real, own, 0.0)
        numerator = tl.zeros((DP,), tl.float32)
        denominator = s * 0.0
        magnitude = s * 0.0
        for block in range(0, E, ROWS):
            feature = block + tl.arange(0, ROWS)
            inside = feature < E
            first = tl.load(pairs + feature, mask=inside, other=F)
            second = tl.load(pairs + E + feature, mask=inside, other=F)
            weight = tl.where(first == second, k2, 2.0 * k2)
            weight = tl.where(second == F, k1, weight)
            weight = tl.where(first == F, k0, weight)
            weight = tl.where(inside, weight, 0.0)
            x = tl.load(q_head + first, mask=first < F, other=1.0).to(tl.float32)
            y = tl.load(q_head + second, mask=second < F, other=1.0).to(tl.float32)
            features = weight * x * y
            at_feature = at_state * E + feature
            at_value = at_feature[:, None] * D + d[None, :]
            in_state = inside[:, None] & (d < D)[None, :]
            state = tl.load(values + at_value, mask=in_state, other=0.0)
            moment = tl.load(normalizer + at_feature, mask=inside, other=0.0)
            numerator += tl.sum(state * features[:, None], axis=0)
            denominator += tl.sum(moment * features, axis=0)
            magnitude += tl.sum(tl.abs(moment * features), axis=0)
            if member == GROUP - 1:
                x = tl.load(k + first, mask=inside & (first < F) & is_real, other=1.0).to(tl.float32)
                y = tl.load(k + second, mask=inside & (second < F) & is_real, other=1.0).to(tl.float32)
                key_features = x * y
                if HAS_MASK:
                    key_features = tl.where(is_real, key_features, 0.0)
                # By way of float64, which holds sum, residual and addend exactly enough: see KernelState.
                exact = state.to(tl.float64) + (key_features[:, None] * value[None, :]).to(tl.float64)
                exact_moment = moment.to(tl.float64) + key_features.to(tl.float64)
                if HAS_RESIDUAL:
                    residual = tl.load(values_residual + at_value, mask=in_state, other=0.0)
                    exact += residual.to(tl.float32).to(tl.float64)
                    residual = tl.load(normalizer_residual + at_feature, mask=inside, other=0.0)
                    exact_moment += residual.to(tl.float32).to(tl.float64)
                rounded = exact.to(tl.float32)
                rounded_moment = exact_moment.to(tl.float32)
                tl.store(new_values + at_value, rounded, mask=in_state)
                tl.store(new_normalizer + at_feature, rounded_moment, mask=inside)
                if HAS_RESIDUAL:
                    rest = (exact - rounded.to(tl.float64)).to(tl.float32)
                    rest_moment = (exact_moment - rounded_moment.to(tl.float64)).to(tl.float32)
                    to = new_values_residual + at_value
                    tl.store(to, rest.to(new_values_residual.dtype.element_ty), mask=in_state)
                    to = new_normalizer_residual + at_feature
                    tl.store(to, rest_moment.to(new_values_residual.dtype.element_ty), mask=inside)
        if NORMALIZE:
            if NONNEGATIVE:
                is_rounding_error = denominator <= magnitude * ROUNDING
                numerator = tl.where(is_rounding_error, 0.0, numerator)
                denominator = tl.where(is_rounding_error, 0.0, denominator)
            denominator += own
            numerator += own * value
            divisor = denominator + eps
            if NONNEGATIVE:
                divisor = tl.where(denominator > 0, divisor, float("inf"))
            numerator /= divisor
        else:
            numerator += own * value
        to = out + (sequence * num_key_heads * GROUP + head) * D + d
        tl.store(to, numerator.to(out.dtype.element_ty), mask=d < D)
    if key_head == 0:
        added = 1
        if HAS_MASK:
            added = is_real.to(tl.int64)
        tl.store(new_count + sequence, tl.load(count + sequence) + added)


@lru_cache
def feature_pairs(feature_dim: int, degrees: tuple[int, ...], device: torch.device) -> Int[Tensor, "2 E"]:
    """The factors of each packed feature; ``feature_dim`` stands for the number 1."""
    one = torch.full((1,), feature_dim, device=device)
    each = torch.arange(feature_dim, device=device)
    columns = {
        0: torch.stack([one, one]),
        1: torch.stack([each, one.expand(feature_dim)]),
        2: torch.triu_indices(feature_dim, feature_dim, device=device),
    }
    return torch.cat([columns[degree] for degree in degrees], dim=1).int()


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    coefficients: Tensor | None,
    key_mask: Tensor | None,
    state: list[Tensor],
    new_state: list[Tensor],
    degrees: tuple[int, ...],
    scale: float,
    eps: float,
    *,
    normalize: bool,
    nonnegative: bool,
    rounding: float,
) -> Tensor:
    """The output; ``new_state`` is written, which may be ``state``.

    States are values, normalizer, count and, if there are, the residuals; ``coefficients`` is (B, H, terms).
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    B, H, F = q.shape
    Hk, D = v.shape[1:]
    out = v.new_empty(B, H, D)
    padded = triton.next_power_of_2(D)
    E = state[0].shape[2]
    launch(
        step_kernel,
        B * Hk,
        [
            q,
            k,
            v,
            out,
            q if key_mask is None else key_mask.view(torch.uint8),
            state[1] if coefficients is None else coefficients,
            feature_pairs(F, degrees, q.device),
            *state,
            *state[: 5 - len(state)],  # in place of residuals that are not there
            *new_state,
            *new_state[: 5 - len(state)],
        ],
        [q.stride(0), k.stride(0), v.stride(0), 0 if coefficients is None else coefficients.stride(0), Hk],
        [scale, eps],
        {
            "Q_HEAD": q.stride(1),
            "K_HEAD": k.stride(1),
            "V_HEAD": v.stride(1),
            "GROUP": H // Hk,
            "F": F,
            "FP": triton.next_power_of_2(F),
            "E": E,
            "D": D,
            "DP": padded,
            "ROWS": min(triton.next_power_of_2(E), max(1, _ELEMENTS // padded)),
            "TERM0": int(0 in degrees),
            "TERM1": int(1 in degrees),
            "TERM2": int(2 in degrees),
            "HAS_MASK": key_mask is not None,
            "HAS_COEFFICIENTS": coefficients is not None,
            "HAS_RESIDUAL": len(state) == 5,
            "NORMALIZE": normalize,
            "NONNEGATIVE": nonnegative,
            "ROUNDING": rounding,
        },
        num_warps=4,
        num_stages=1,
    )
    return out
