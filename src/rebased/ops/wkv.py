"""The weighted average of RWKV version 4 (Peng et al. 2023, equation 16): of sequences, and one token at a time."""

from typing import Literal, NamedTuple, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rebased.ops.backends import TORCH_OR_TRITON, check_name, require_triton
from rebased.ops.checks import INPUT_DTYPES, check_floats, check_key_mask, check_like, check_state_dtype, check_switches
from rebased.ops.dtypes import no_autocast, sums_dtype
from rebased.ops.state import check_sizes
from rebased.ops.wkv_chunk import LOWEST, log_denominator, weights
from rebased.ops.wkv_operator import no_triton_for, sum_dtype, weighted_average

__all__ = ["WKVState", "initial_wkv_state", "wkv", "wkv_step"]

CHUNK = 128
"""Tokens between two states that the forward pass keeps, and that the torch backend scans at a time."""


class WKVState(NamedTuple):
    """Sums over the tokens so far, (B, M): ``Σ_s exp(-n_s·w + k_s) v_s``, and the same without v, over exp(maximum).

    n_s counts the tokens after s. float32, or float64 for float64 inputs. Gradients of the two sums are those at a
    given maximum, which has none itself where it is returned: what is computed from numerator·exp(maximum) and
    denominator·exp(maximum), as by the next piece of a sequence, is differentiated correctly.
    """

    numerator: Tensor
    denominator: Tensor
    maximum: Tensor


def initial_wkv_state(
    batch_size: int, width: int, *, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
) -> WKVState:
    """The state before the first token, for inputs of ``dtype``: sums are float32 unless that is float64."""
    check_sizes(batch_size, width=width)
    if dtype not in INPUT_DTYPES:
        raise ValueError(f"dtype={dtype} is unknown; it may be float16, bfloat16, float32 or float64")
    numerator, denominator = (torch.zeros(batch_size, width, device=device, dtype=sums_dtype(dtype)) for _ in range(2))
    return WKVState(numerator, denominator, torch.full_like(numerator, LOWEST))


@overload
def wkv(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bonus: Tensor,
    *,
    key_mask: Tensor | None = ...,
    state: WKVState | None = ...,
    return_state: Literal[False] = ...,
    backend: str = ...,
) -> Tensor: ...
@overload
def wkv(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bonus: Tensor,
    *,
    key_mask: Tensor | None = ...,
    state: WKVState | None = ...,
    return_state: Literal[True],
    backend: str = ...,
) -> tuple[Tensor, WKVState]: ...
def wkv(
    k: Float[Tensor, "B T M"],
    v: Float[Tensor, "B T M"],
    decay: Float[Tensor, " M"],
    bonus: Float[Tensor, " M"],
    *,
    key_mask: Bool[Tensor, "B T"] | None = None,
    state: WKVState | None = None,
    return_state: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "B T M"] | tuple[Float[Tensor, "B T M"], WKVState]:
    """An average of the values of all tokens up to t, for each channel.

    Weights are exp(-(t-1-s)·decay + k_s) for s < t, and exp(bonus + k_t) for the token itself; decay should not be
    negative. A token whose ``key_mask`` is False enters no sum, does not count in t-1-s, leaves the state as it is, and
    its output is zero. ``state`` holds the sums over earlier tokens; with ``return_state`` the result is a pair, output
    and last state.

    The output has v's dtype; all else is float32, float64 where k or v is, under autocast too. No k up to 1e4 in size
    overflows. The backward pass computes the sums between every `CHUNK` tokens again.

    Backends: "torch" works everywhere; "triton" is one kernel in each direction, for a GPU and not in float64; "auto"
    takes the latter where it can. Raises ValueError (TypeError for a wrong type) that names the argument.
    """
    check_switches(return_state=return_state)
    _check_inputs(k, v, decay, bonus, "B T M")
    if key_mask is not None:
        check_key_mask(key_mask, k.shape[:2], k.device)
    if state is not None:
        _check_state(state, k, v)
    check_name(backend, TORCH_OR_TRITON)
    if backend == "triton":
        require_triton(no_triton_for(k, v), instead="torch")
    sums = (None, None, None) if state is None else (x[:, None] for x in state)
    mask = None if key_mask is None else key_mask[:, :, None]
    inputs = k[:, :, None], v[:, :, None], decay[None], bonus[None], mask, *sums
    out, numerator, denominator, maximum, _ = weighted_average(*inputs, CHUNK, backend)
    last = WKVState(numerator[:, 0], denominator[:, 0], maximum[:, 0])
    return (out[:, :, 0], last) if return_state else out[:, :, 0]


def wkv_step(
    k: Float[Tensor, "B M"],
    v: Float[Tensor, "B M"],
    decay: Float[Tensor, " M"],
    bonus: Float[Tensor, " M"],
    state: WKVState,
) -> tuple[Float[Tensor, "B M"], WKVState]:
    """One token: its output and the new state, as `wkv` has them."""
    _check_inputs(k, v, decay, bonus, "B M")
    _check_state(state, k, v)
    dtype = sum_dtype(k, v)
    with no_autocast(k):
        key, value, w, u = (x.to(dtype) for x in (k, v, decay, bonus))
        past, own = weights(key, u, state.maximum)
        out = (past * state.numerator + own * value) / (past * state.denominator + own)
        largest = torch.maximum(log_denominator(state.denominator, state.maximum) - w, key)
        maximum = largest.detach().ceil()
        kept, entering = (state.maximum - maximum - w).exp(), (key - maximum).exp()
        numerator = kept * state.numerator + entering * value
        denominator = kept * state.denominator + entering
    return out.to(v.dtype), WKVState(numerator, denominator, maximum)


# ---- Checks ----


def _check_inputs(k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, axes: str) -> None:
    for name, x in (("k", k), ("v", v)):
        check_floats(name, x, axes)
    for name, x in (("decay", decay), ("bonus", bonus)):
        check_floats(name, x, "M")
    for name, x, shape in (("v", v, k.shape), ("decay", decay, k.shape[-1:]), ("bonus", bonus, k.shape[-1:])):
        check_like(name, x, shape, "k", k)


def _check_state(state: WKVState, k: Tensor, v: Tensor) -> None:
    if not isinstance(state, WKVState):
        raise TypeError(f"state is a {type(state).__name__}; it must be a WKVState")
    for name, x in zip(state._fields, state, strict=True):
        check_floats(f"state.{name}", x, "B M")
        check_like(f"state.{name}", x, (k.shape[0], k.shape[-1]), "k", k)
        check_state_dtype(f"state.{name}", x, sum_dtype(k, v))
