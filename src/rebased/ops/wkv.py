"""The weighted average of RWKV version 4 (Peng et al. 2023, equation 16), parallel over time.

``rebased::wkv`` has groups, each with a decay and a bonus of its own: k and v (B, T, G, M), decay and bonus (G, M),
key_mask (B, T, G), states (B, G, M). Stacked replicas run as groups of one call.

Sums of exponentials are kept relative to exp(maximum). Nothing depends on which number ``maximum`` is, so no gradient
flows through its choice. Here it is a whole number near the logarithm of the denominator: differences of whole numbers
are exact, where those of running maxima would gather rounding errors over many tokens, or lose digits for large k.
"""

from functools import partial
from typing import Any, Literal, NamedTuple, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rebased.ops.backends import TORCH_OR_TRITON, check_name, require_triton, runs_on_triton
from rebased.ops.checks import INPUT_DTYPES, check_key_mask, check_switches
from rebased.ops.dtypes import no_autocast, sums_dtype
from rebased.ops.opaque import define_operator
from rebased.ops.recurrence import linear_recurrence_, maximum_recurrence_
from rebased.ops.replicas import join_replicas
from rebased.ops.scan_common import check_floats, check_like, check_state_dtype, no_tuples, pieces

__all__ = ["WKVState", "initial_wkv_state", "wkv", "wkv_step"]

CHUNK = 128
"""Tokens between two states that the forward pass keeps, and that the torch backend scans at a time."""

PIECE_NUMBERS = 2**17
"""How many numbers the torch backend's (B, C, G, M) tensors have, unless one sequence's chunk has more."""

LOWEST = -1e30
"""The ``maximum`` of empty sums: finite, so that differences are, and below every k."""


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
    for name, size, least in (("batch_size", batch_size, 0), ("width", width, 1)):
        if isinstance(size, float):
            raise TypeError(f"{name} is {size}; it must be an integer")
        if size < least:
            raise ValueError(f"{name}={size} must be at least {least}")
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
        require_triton(_no_triton_for(k, v), instead="torch")
    sums = (None, None, None) if state is None else (x[:, None] for x in state)
    mask = None if key_mask is None else key_mask[:, :, None]
    inputs = k[:, :, None], v[:, :, None], decay[None], bonus[None], mask, *sums
    out, numerator, denominator, maximum, _ = _wkv(*inputs, CHUNK, backend)
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
    dtype = _sum_dtype(k, v)
    with no_autocast(k):
        key, value, w, u = (x.to(dtype) for x in (k, v, decay, bonus))
        past, own = _weights(key, u, state.maximum)
        out = (past * state.numerator + own * value) / (past * state.denominator + own)
        largest = torch.maximum(_log_denominator(state.denominator, state.maximum) - w, key)
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
        check_state_dtype(f"state.{name}", x, _sum_dtype(k, v))


def _sum_dtype(k: Tensor, v: Tensor) -> torch.dtype:
    return sums_dtype(torch.promote_types(k.dtype, v.dtype))


def _no_triton_for(k: Tensor, v: Tensor) -> str | None:
    for name, x in (("k", k), ("v", v)):
        if x.dtype == torch.float64:
            return f"computes in float32, and {name} has dtype float64"
    return None


# ---- On real tensors ----


class _Chunk(NamedTuple):
    """The sums of one chunk and what they are made of, (B, C, G, M); with both sums, (B, C, 2, G, M)."""

    v: Tensor
    maximum: Tensor
    kept: Tensor
    """What of the sums before a token remains after it, (B, C, 1, G, M)."""
    entering: Tensor
    """What v of a token is multiplied with in the sums after it."""
    before: Tensor
    after: Tensor
    past: Tensor
    """What the sums before a token are multiplied with in its output; v of the token itself with ``own``."""
    own: Tensor
    normalizer: Tensor
    out: Tensor

    @classmethod
    def of(cls, k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, key_mask: Tensor | None, first: Tensor) -> "_Chunk":
        """``first``: the state before the chunk, (B, 3, G, M), in whose dtype all is computed."""
        k, v, decay, bonus = (x.to(first.dtype) for x in (k, v, decay, bonus))
        first_sums, first_maximum = first[:, :2], first[:, 2]
        decrease = decay.expand(1, *k.shape[1:])
        if key_mask is not None:
            k = k.where(key_mask[..., None], LOWEST)
            v = v.where(key_mask[..., None], 0.0)  # not even NaN enters
            decrease = decrease.where(key_mask[..., None], 0.0)
        maximum = maximum_recurrence_(
            decrease.clone(memory_format=torch.contiguous_format),
            k.clone(memory_format=torch.contiguous_format),
            _log_denominator(first[:, 1], first_maximum),
        ).ceil_()
        if key_mask is not None:
            seen = key_mask.cumsum(dim=1) > 0
            maximum = maximum.where(seen[..., None], first_maximum[:, None])
        maximum_before = _shifted(first_maximum, maximum)
        kept = (maximum_before - maximum).sub_(decrease).exp_()[:, :, None]
        entering = (k - maximum).exp_()
        if key_mask is not None:
            entering.masked_fill_(~key_mask[..., None], 0.0)
        after = torch.stack([entering * v, entering], dim=2)
        linear_recurrence_(kept.clone(), after, first_sums)
        before = _shifted(first_sums, after)
        past, own = _weights(k, bonus, maximum_before)
        normalizer = past * before[:, :, 1] + own
        out = (past * before[:, :, 0]).addcmul_(own, v)
        if key_mask is not None:
            normalizer.masked_fill_(~key_mask[..., None], 1.0)
            out.masked_fill_(~key_mask[..., None], 0.0)
        return cls(v, maximum, kept, entering, before, after, past, own, normalizer, out.div_(normalizer))

    def backward(
        self, dout: Tensor, dlast: Tensor, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients of k, v, decay, bonus and the sums before the chunk; ``dlast`` is that of those after it."""
        dout = dout.to(dlast.dtype)
        if key_mask is not None:
            dout = dout.where(key_mask[..., None], 0.0)
        dratio = dout / self.normalizer
        dbefore = torch.stack([dratio, -dratio * self.out], dim=2).mul_(self.past[:, :, None])
        linear_recurrence_(self.kept.clone(), dbefore, dlast, reverse=True)
        dafter = torch.cat([dbefore[:, 1:], dlast[:, None]], dim=1)
        down = dratio * self.own
        dv = torch.addcmul(down, self.entering, dafter[:, :, 0])
        dbonus = down.mul_(self.v - self.out)
        dk = torch.addcmul(dafter[:, :, 1], dafter[:, :, 0], self.v).mul_(self.entering).add_(dbonus)
        ddecay = (self.before * dafter).sum(dim=2).mul_(self.kept[:, :, 0])
        if key_mask is not None:
            ddecay.masked_fill_(~key_mask[..., None], 0.0)
        return dk, dv, -ddecay.sum(dim=(0, 1)), dbonus.sum(dim=(0, 1)), dbefore[:, 0]


def _shifted(first: Tensor, x: Tensor) -> Tensor:
    """What x is before each token, ``first`` before the first."""
    return torch.cat([first[:, None], x[:, :-1]], dim=1)


def _log_denominator(denominator: Tensor, maximum: Tensor) -> Tensor:
    """Of the true sum; `LOWEST` if that is zero."""
    return (maximum.detach() + denominator.detach().log()).clamp(min=LOWEST)


def _weights(k: Tensor, bonus: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
    """What the sums so far and v are multiplied with in the output. Only their ratio counts; the larger one is 1."""
    difference = (k - maximum) + bonus  # in this order: k may be so large that its sum with bonus loses digits
    shift = difference.detach().clamp(min=0)
    return (-shift).exp(), (difference - shift).exp()


def _cut(key_mask: Tensor | None, at: tuple[slice, ...]) -> Tensor | None:
    return None if key_mask is None else key_mask[at]


def _forward(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bonus: Tensor,
    key_mask: Tensor | None,
    numerator: Tensor | None,
    denominator: Tensor | None,
    maximum: Tensor | None,
    chunk: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output, the last state's tensors, and all states there are, (B, ·, 3, G, M): before each chunk, and the last."""
    inputs = k, v, decay, bonus, key_mask, numerator, denominator, maximum, chunk
    if runs_on_triton(backend, "k", k, _no_triton_for(k, v) or no_tuples()):
        from rebased.ops.triton import wkv

        return wkv.forward(*inputs)
    out, *last, states = _forward_fake(*inputs, backend)
    for i, (given, empty) in enumerate([(numerator, 0.0), (denominator, 0.0), (maximum, LOWEST)]):
        states[:, 0, i] = empty if given is None else given
    for rows, groups in pieces(k.shape[0], k.shape[2], chunk * k.shape[3], PIECE_NUMBERS):
        for index in range(states.shape[1] - 1):
            at = rows, slice(index * chunk, (index + 1) * chunk), groups
            sums = _Chunk.of(
                k[at], v[at], decay[groups], bonus[groups], _cut(key_mask, at), states[rows, index, :, groups]
            )
            states[rows, index + 1, :2, groups] = sums.after[:, -1]
            states[rows, index + 1, 2, groups] = sums.maximum[:, -1]
            out[at] = sums.out
    for i, x in enumerate(last):
        x.copy_(states[:, -1, i])
    return out, last[0], last[1], last[2], states


def _backward(
    dout: Tensor | None,
    dnumerator: Tensor | None,
    ddenominator: Tensor | None,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bonus: Tensor,
    key_mask: Tensor | None,
    states: Tensor,
    chunk: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of k, v, decay, bonus and the first state's tensors."""
    if dout is None:
        dout = v.new_zeros(1).expand(v.shape)
    if runs_on_triton(backend, "k", k, _no_triton_for(k, v) or no_tuples()):
        from rebased.ops.triton import wkv

        return wkv.backward(dout, dnumerator, ddenominator, k, v, decay, bonus, key_mask, states, chunk)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    ddecay, dbonus = states.new_zeros(decay.shape), states.new_zeros(bonus.shape)
    dsums = states.new_zeros(states[:, 0, :2].shape)
    for i, grad in enumerate((dnumerator, ddenominator)):
        if grad is not None:
            dsums[:, i] = grad
    for rows, groups in pieces(k.shape[0], k.shape[2], chunk * k.shape[3], PIECE_NUMBERS):
        dlast = dsums[rows, :, groups]
        for index in reversed(range(states.shape[1] - 1)):
            at = rows, slice(index * chunk, (index + 1) * chunk), groups
            mask = _cut(key_mask, at)
            sums = _Chunk.of(k[at], v[at], decay[groups], bonus[groups], mask, states[rows, index, :, groups])
            # Should a rounding error have made another whole number of the maximum, the gradient is made to fit.
            dlast = dlast * (sums.maximum[:, -1] - states[rows, index + 1, 2, groups]).exp()[:, None]
            dk[at], dv[at], decay_part, bonus_part, dlast = sums.backward(dout[at], dlast, mask)
            ddecay[groups] += decay_part
            dbonus[groups] += bonus_part
        dsums[rows, :, groups] = dlast
    dmaximum = (dsums * states[:, 0, :2]).sum(dim=1)
    return dk, dv, ddecay.to(decay.dtype), dbonus.to(bonus.dtype), dsums[:, 0].clone(), dsums[:, 1].clone(), dmaximum


# ---- On fake tensors ----


def _forward_fake(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bonus: Tensor,
    key_mask: Tensor | None,
    numerator: Tensor | None,
    denominator: Tensor | None,
    maximum: Tensor | None,
    chunk: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, T, G, M = k.shape
    num_chunks = (T + chunk - 1) // chunk
    states = k.new_empty(B, num_chunks + 1, 3, G, M, dtype=_sum_dtype(k, v))
    last = [states.new_empty(B, G, M) for _ in range(3)]
    return torch.empty_like(v), last[0], last[1], last[2], states


def _backward_fake(
    dout: Tensor | None,
    dnumerator: Tensor | None,
    ddenominator: Tensor | None,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bonus: Tensor,
    key_mask: Tensor | None,
    states: Tensor,
    chunk: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, _, G, M = k.shape
    dfirst = [states.new_empty(B, G, M) for _ in range(3)]
    dinputs = torch.empty_like(k), torch.empty_like(v), decay.new_empty(G, M), bonus.new_empty(G, M)
    return *dinputs, dfirst[0], dfirst[1], dfirst[2]


# ---- Autograd ----


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    k, v, decay, bonus, key_mask, numerator, _, _, chunk, backend = inputs
    _, _, _, maximum, states = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(maximum, states)
    ctx.save_for_backward(k, v, decay, bonus, key_mask, states)
    ctx.has_state = numerator is not None
    ctx.settings = chunk, backend


def _differentiate(ctx: Any, *grads: Tensor | None) -> Any:
    grads = grads[:3]
    if all(grad is None for grad in grads):
        return (None,) * 10
    *inputs, dnumerator, ddenominator, dmaximum = _wkv_backward(*grads, *ctx.saved_tensors, *ctx.settings)
    state = (dnumerator, ddenominator, dmaximum) if ctx.has_state else (None, None, None)
    return *inputs, None, *state, None, None


_wkv_backward = define_operator(
    "wkv_backward(Tensor? dout, Tensor? dnumerator, Tensor? ddenominator, Tensor k, Tensor v, Tensor decay, "
    "Tensor bonus, Tensor? key_mask, Tensor states, int chunk, str backend) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    implementation=_backward,
    fake=_backward_fake,
    vmap=partial(join_replicas, inputs=(2, 1, 1, 2, 2, 0, 0, 2, 3), outputs=(2, 2, 0, 0, 1, 1, 1)),
)

_wkv = define_operator(
    "wkv(Tensor k, Tensor v, Tensor decay, Tensor bonus, Tensor? key_mask, Tensor? numerator, Tensor? denominator, "
    "Tensor? maximum, int chunk, str backend) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    implementation=_forward,
    fake=_forward_fake,
    vmap=partial(join_replicas, inputs=(2, 2, 0, 0, 2, 1, 1, 1), outputs=(2, 1, 1, 1, 3)),
    setup_context=_setup_context,
    backward=_differentiate,
)
