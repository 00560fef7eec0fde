"""One token of decoding in one launch: the output of the state and the token, and the state with the token absorbed."""

from functools import lru_cache

import torch
import triton
from jaxtyping import Int
from torch import Tensor

from rebased.ops.triton.launch import Launcher
from rebased.ops.triton.step_kernel import step_kernel

_ELEMENTS = 4096
"""Of a state, how many a program holds at a time."""


_pairs: dict[tuple[int, tuple[int, ...], torch.device], Tensor] = {}


def feature_pairs(feature_dim: int, degrees: tuple[int, ...], device: torch.device) -> Int[Tensor, "2 E"]:
    """The factors of each packed feature; ``feature_dim`` stands for the number 1. Made once for each device."""
    key = feature_dim, degrees, device
    if key not in _pairs:
        pairs = _make_pairs(*key)
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return pairs  # filled only when the graph is replayed
            torch.cuda.current_stream(device).synchronize()  # other streams will read it
        _pairs[key] = pairs
    return _pairs[key]


def _make_pairs(feature_dim: int, degrees: tuple[int, ...], device: torch.device) -> Int[Tensor, "2 E"]:
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
    E = state[0].shape[2]
    run = _launcher(
        *(F, E, D, H // Hk, degrees),
        *(key_mask is not None, coefficients is not None, len(state) == 5),
        *(normalize, nonnegative, rounding),
    )
    run(
        B * Hk,
        [
            q,
            k,
            v,
            out,
            q if key_mask is None else key_mask.contiguous().view(torch.uint8),
            state[1] if coefficients is None else coefficients,
            feature_pairs(F, degrees, q.device),
            *state,
            *state[: 5 - len(state)],  # in place of residuals that are not there
            *new_state,
            *new_state[: 5 - len(state)],
        ],
        [
            *(*q.stride()[:2], *k.stride()[:2], *v.stride()[:2]),
            0 if coefficients is None else coefficients.stride(0),
            Hk,
        ],
        [scale, eps],
    )
    return out


@lru_cache
def _launcher(
    feature_dim: int,
    num_features: int,
    head_dim: int,
    group: int,
    degrees: tuple[int, ...],
    has_mask: bool,
    has_coefficients: bool,
    has_residual: bool,
    normalize: bool,
    nonnegative: bool,
    rounding: float,
) -> Launcher:
    padded = triton.next_power_of_2(head_dim)
    constants = {
        "GROUP": group,
        "F": feature_dim,
        "FP": triton.next_power_of_2(feature_dim),
        "E": num_features,
        "D": head_dim,
        "DP": padded,
        "ROWS": min(triton.next_power_of_2(num_features), max(1, _ELEMENTS // padded)),
        "TERM0": int(0 in degrees),
        "TERM1": int(1 in degrees),
        "TERM2": int(2 in degrees),
        "HAS_MASK": has_mask,
        "HAS_COEFFICIENTS": has_coefficients,
        "HAS_RESIDUAL": has_residual,
        "NORMALIZE": normalize,
        "NONNEGATIVE": nonnegative,
        "ROUNDING": rounding,
    }
    return Launcher(step_kernel, constants, num_warps=4, num_stages=1)
