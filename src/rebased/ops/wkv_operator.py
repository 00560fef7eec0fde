"""``rebased::wkv``: RWKV's weighted average as one operator, and its backward as another.

It has groups, each with a decay and a bonus of its own: k and v (B, T, G, M), decay and bonus (G, M), key_mask
(B, T, G), states (B, G, M). Stacked replicas run as groups of one call.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from rebased.ops.backends import no_tuples, runs_on_triton
from rebased.ops.dtypes import sums_dtype
from rebased.ops.opaque import define_operator
from rebased.ops.pieces import pieces
from rebased.ops.replicas import join_replicas
from rebased.ops.wkv_chunk import LOWEST, ChunkSums

__all__ = ["no_triton_for", "sum_dtype", "weighted_average"]

PIECE_NUMBERS = 2**17
"""How many numbers the torch backend's (B, C, G, M) tensors have, unless one sequence's chunk has more."""


def sum_dtype(k: Tensor, v: Tensor) -> torch.dtype:
    """What sums over these inputs are kept in."""
    return sums_dtype(torch.promote_types(k.dtype, v.dtype))


def no_triton_for(k: Tensor, v: Tensor) -> str | None:
    """Why the Triton kernels do not take these inputs; ``None`` if they do."""
    for name, x in (("k", k), ("v", v)):
        if x.dtype == torch.float64:
            return f"computes in float32, and {name} has dtype float64"
    return None


# ---- On real tensors ----


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
    if runs_on_triton(backend, "k", k, no_triton_for(k, v) or no_tuples()):
        from rebased.ops.triton import wkv

        return wkv.forward(*inputs)
    out, *last, states = _forward_fake(*inputs, backend)
    for i, (given, empty) in enumerate([(numerator, 0.0), (denominator, 0.0), (maximum, LOWEST)]):
        states[:, 0, i] = empty if given is None else given
    for rows, groups in pieces(k.shape[0], k.shape[2], chunk * k.shape[3], PIECE_NUMBERS):
        for index in range(states.shape[1] - 1):
            at = rows, slice(index * chunk, (index + 1) * chunk), groups
            sums = ChunkSums.of(
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
    if runs_on_triton(backend, "k", k, no_triton_for(k, v) or no_tuples()):
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
            sums = ChunkSums.of(k[at], v[at], decay[groups], bonus[groups], mask, states[rows, index, :, groups])
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
    states = k.new_empty(B, num_chunks + 1, 3, G, M, dtype=sum_dtype(k, v))
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
    *inputs, dnumerator, ddenominator, dmaximum = _weighted_average_backward(*grads, *ctx.saved_tensors, *ctx.settings)
    state = (dnumerator, ddenominator, dmaximum) if ctx.has_state else (None, None, None)
    return *inputs, None, *state, None, None


_weighted_average_backward = define_operator(
    "wkv_backward(Tensor? dout, Tensor? dnumerator, Tensor? ddenominator, Tensor k, Tensor v, Tensor decay, "
    "Tensor bonus, Tensor? key_mask, Tensor states, int chunk, str backend) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    implementation=_backward,
    fake=_backward_fake,
    vmap=partial(join_replicas, inputs=(2, 1, 1, 2, 2, 0, 0, 2, 3), outputs=(2, 2, 0, 0, 1, 1, 1)),
)

weighted_average = define_operator(
    "wkv(Tensor k, Tensor v, Tensor decay, Tensor bonus, Tensor? key_mask, Tensor? numerator, Tensor? denominator, "
    "Tensor? maximum, int chunk, str backend) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    implementation=_forward,
    fake=_forward_fake,
    vmap=partial(join_replicas, inputs=(2, 2, 0, 0, 2, 1, 1, 1), outputs=(2, 1, 1, 1, 3)),
    setup_context=_setup_context,
    backward=_differentiate,
)
