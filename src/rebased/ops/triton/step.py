"""One token of decoding in one launch: the output of the state and the token, and the state with the token absorbed."""

from functools import lru_cache

import torch
import triton
from jaxtyping import Int
from torch import Tensor

from rebased.ops.triton.launch import launch
from rebased.ops.triton.step_kernel import step_kernel

MAX_FEATURE_DIM = 64
MAX_HEAD_DIM = 256
_ELEMENTS = 4096
"""Of a state, how many a program holds at a time."""


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
