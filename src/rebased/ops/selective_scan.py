"""The selective scan of Mamba (Gu and Dao 2023, Algorithm 2), with a state that no one keeps for every token.

``rebased::selective_scan`` has groups, each with an A of its own: x and dt (B, T, G, M), A (G, M, N), b and c
(B, T, G, N), states (B, G, M, N). Stacked replicas run as groups of one call.
"""

import math
from functools import partial
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from rebased.ops.backends import TORCH_OR_TRITON, check_name, no_tuples, require_triton, runs_on_triton
from rebased.ops.checks import check_floats, check_like, check_state_dtype, check_switches
from rebased.ops.dtypes import compute_dtype, no_autocast
from rebased.ops.opaque import define_operator
from rebased.ops.pieces import pieces
from rebased.ops.recurrence import linear_recurrence_
from rebased.ops.replicas import join_replicas

__all__ = ["selective_scan", "selective_scan_step"]

CHUNK = 32
"""Tokens between two states that the forward pass keeps, and that the torch backend scans at a time."""

PIECE_NUMBERS = 2**20
"""How many numbers the torch backend's (B, C, G, M, N) tensors have, unless one sequence's chunk has more."""

MAX_TRITON_STATE_DIM = 128
"""A Triton program holds all N of its channels; "auto" leaves more to torch."""


@overload
def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    state: Tensor | None = ...,
    return_state: Literal[False] = ...,
    backend: str = ...,
) -> Tensor: ...
@overload
def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    state: Tensor | None = ...,
    return_state: Literal[True],
    backend: str = ...,
) -> tuple[Tensor, Tensor]: ...
def selective_scan(
    x: Float[Tensor, "B T M"],
    dt: Float[Tensor, "B T M"],
    A: Float[Tensor, "M N"],
    b: Float[Tensor, "B T N"],
    c: Float[Tensor, "B T N"],
    *,
    state: Float[Tensor, "B M N"] | None = None,
    return_state: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "B T M"] | tuple[Float[Tensor, "B T M"], Float[Tensor, "B M N"]]:
    """``y_t = h_t c_t``, where ``h_t = exp(dt_t·A) h_{t-1} + (dt_t·x_t) b_tᵀ``.

    ``state`` is the h before the first token, zero if there is none; with ``return_state`` the result is a pair, y and
    the last h. A token of dt = 0 leaves h as it is. A should not be positive, dt not negative: nothing is done about an
    h that grows.

    y has x's dtype; all else is float32 whatever the inputs, float64 for float64 x, under autocast too. Memory does not
    grow by N for each token: the backward pass computes the states between every `CHUNK` tokens again.

    Backends: "torch" works everywhere; "triton" is one kernel in each direction, for a GPU, N up to
    `MAX_TRITON_STATE_DIM` and not in float64; "auto" takes the latter where it can. Raises ValueError (TypeError for a
    wrong type) that names the argument.
    """
    check_switches(return_state=return_state)
    _check_inputs(x, dt, A, b, c, "B T")
    _check_state(state, x, A)
    check_name(backend, TORCH_OR_TRITON)
    if backend == "triton":
        require_triton(_no_triton_for(x, A), instead="torch")
    y, last, _ = _selective_scan(
        x[:, :, None],
        dt[:, :, None],
        A[None],
        b[:, :, None],
        c[:, :, None],
        None if state is None else state[:, None],
        CHUNK,
        backend,
    )
    return (y[:, :, 0], last[:, 0]) if return_state else y[:, :, 0]


def selective_scan_step(
    x: Float[Tensor, "B M"],
    dt: Float[Tensor, "B M"],
    A: Float[Tensor, "M N"],
    b: Float[Tensor, "B N"],
    c: Float[Tensor, "B N"],
    state: Float[Tensor, "B M N"],
) -> tuple[Float[Tensor, "B M"], Float[Tensor, "B M N"]]:
    """One token: its y and the new state, as `selective_scan` has them."""
    _check_inputs(x, dt, A, b, c, "B")
    if state is None:
        raise TypeError("state is None; it must be a tensor")
    _check_state(state, x, A)
    with no_autocast(x):
        dtype = compute_dtype(x)
        steps = dt.to(dtype)
        decay = (steps[..., None] * A.to(dtype)).exp()  # (B, M, N)
        state = decay * state + (steps * x.to(dtype))[..., None] * b.to(dtype)[:, None, :]
        y = (state * c.to(dtype)[:, None, :]).sum(dim=-1)
    return y.to(x.dtype), state


# ---- Checks ----


def _check_inputs(x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, leading: str) -> None:
    """``leading``: the axes before the channels, by name."""
    for name, tensor, axes in (("x", x, f"{leading} M"), ("dt", dt, f"{leading} M"), ("A", A, "M N")):
        check_floats(name, tensor, axes)
    for name, tensor in (("b", b), ("c", c)):
        check_floats(name, tensor, f"{leading} N")
    *tokens, M = x.shape
    N = A.shape[1]
    for name, tensor, shape in (
        ("dt", dt, (*tokens, M)),
        ("A", A, (M, N)),
        ("b", b, (*tokens, N)),
        ("c", c, (*tokens, N)),
    ):
        check_like(name, tensor, shape, "x and A", x)


def _check_state(state: Tensor | None, x: Tensor, A: Tensor) -> None:
    if state is not None:
        check_floats("state", state, "B M N")
        check_like("state", state, (x.shape[0], *A.shape), "x and A", x)
        check_state_dtype("state", state, compute_dtype(x))


def _no_triton_for(x: Tensor, A: Tensor) -> str | None:
    if x.dtype == torch.float64:
        return "computes in float32, and x has dtype float64"
    if A.shape[-1] > MAX_TRITON_STATE_DIM:
        return f"takes states up to {MAX_TRITON_STATE_DIM}, and A has more columns"
    return None


# ---- On real tensors ----


def _forward(
    x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor | None, chunk: int, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the last state, and all that are kept, (B, ·, G, M, N): the state before each chunk, and the last."""
    if runs_on_triton(backend, "x", x, _no_triton_for(x, A) or no_tuples()):
        from rebased.ops.triton import selective_scan

        return selective_scan.forward(x, dt, A, b, c, state, chunk)
    y, last, kept = _forward_fake(x, dt, A, b, c, state, chunk, backend)
    kept[:, 0] = 0 if state is None else state
    for rows, groups in pieces(x.shape[0], x.shape[2], chunk * math.prod(A.shape[1:]), PIECE_NUMBERS):
        for index in range(kept.shape[1] - 1):
            at = rows, slice(index * chunk, (index + 1) * chunk), groups
            decay, inputs = _recurrence(*(tensor.to(kept.dtype) for tensor in (x[at], dt[at], A[groups], b[at])))
            states = linear_recurrence_(decay, inputs, kept[rows, index, groups])
            kept[rows, index + 1, groups] = states[:, -1]
            y[at] = states.mul_(c[at].to(kept.dtype)[..., None, :]).sum(dim=-1)
    return y, last.copy_(kept[:, -1]), kept


def _backward(
    dy: Tensor | None,
    dlast: Tensor | None,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    c: Tensor,
    kept: Tensor,
    chunk: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, dt, A, b, c and the first state."""
    if dy is None:
        dy = x.new_zeros(1).expand(x.shape)
    if runs_on_triton(backend, "x", x, _no_triton_for(x, A) or no_tuples()):
        from rebased.ops.triton import selective_scan

        return selective_scan.backward(dy, dlast, x, dt, A, b, c, kept, chunk)
    dx, ddt, _, db, dc, dstate = _backward_fake(dy, dlast, x, dt, A, b, c, kept, chunk, backend)
    dstate = dstate.zero_() if dlast is None else dstate.copy_(dlast)
    dA = kept.new_zeros(A.shape)
    for rows, groups in pieces(x.shape[0], x.shape[2], chunk * math.prod(A.shape[1:]), PIECE_NUMBERS):
        dh = dstate[rows, groups]
        for index in reversed(range(kept.shape[1] - 1)):
            at = rows, slice(index * chunk, (index + 1) * chunk), groups
            inputs = (tensor.to(dh.dtype) for tensor in (dy[at], x[at], dt[at], A[groups], b[at], c[at]))
            dx[at], ddt[at], partial, db[at], dc[at], dh = _chunk_backward(dh, kept[rows, index, groups], *inputs)
            dA[groups] += partial
        dstate[rows, groups] = dh
    return dx, ddt, dA.to(A.dtype), db, dc, dstate


def _recurrence(x: Tensor, dt: Tensor, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Decays and inputs of a chunk's states, (B, C, G, M, N)."""
    return (dt[..., None] * A).exp_(), (dt * x)[..., None] * b[..., None, :]


def _chunk_backward(
    dlast: Tensor, first: Tensor, dy: Tensor, x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of a chunk's x, dt, A, b, c and ``first`` state, ``dlast`` being that of its last one.

    At its most four tensors of the states' size are there at once.
    """
    decay, inputs = _recurrence(x, dt, A, b)
    carried = decay.clone()
    states = linear_recurrence_(carried.clone(), inputs, first)
    carried[:, 0].mul_(first)
    carried[:, 1:].mul_(states[:, :-1])  # decay_t · h_{t-1}
    dc = torch.matmul(dy[..., None, :], states)[..., 0, :]
    # Over the states their gradients are written: dh_t = dy_t c_tᵀ + decay_{t+1} · dh_{t+1}.
    dstates = torch.mul(dy[..., None], c[..., None, :], out=states)
    dstates[:, -1].add_(dlast)
    linear_recurrence_(decay[:, 1:], dstates[:, :-1], dstates[:, -1], reverse=True)
    dfirst = decay[:, 0] * dstates[:, 0]
    db = torch.matmul((dt * x)[..., None, :], dstates)[..., 0, :]
    dexponents = carried.mul_(dstates)  # of dt·A
    dinputs = dstates.mul_(b[..., None, :]).sum(dim=-1)  # of dt·x
    ddt = dinputs * x + (dexponents * A).sum(dim=-1)
    dA = dexponents.mul_(dt[..., None]).sum(dim=(0, 1))
    return dinputs.mul_(dt), ddt, dA, db, dc, dfirst


# ---- On fake tensors ----


def _forward_fake(
    x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor | None, chunk: int, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    num_chunks = (x.shape[1] + chunk - 1) // chunk
    last = x.new_empty(x.shape[0], *A.shape, dtype=compute_dtype(x))
    # A traced size of num_chunks alone would make torch.export ask whether it is 1.
    return torch.empty_like(x), last, last.new_empty(x.shape[0], num_chunks + 1, *A.shape)


def _backward_fake(
    dy: Tensor | None,
    dlast: Tensor | None,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    c: Tensor,
    kept: Tensor,
    chunk: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dx, ddt, db, dc = (torch.empty_like(like) for like in (x, dt, b, c))
    return dx, ddt, A.new_empty(A.shape), db, dc, kept.new_empty(x.shape[0], *A.shape)


# ---- Autograd ----


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, state, chunk, backend = inputs
    kept = output[2]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(kept)
    ctx.save_for_backward(*tensors, kept)
    ctx.has_state = state is not None
    ctx.settings = chunk, backend


def _differentiate(ctx: Any, dy: Tensor | None, dlast: Tensor | None, _: Any) -> Any:
    if dy is None and dlast is None:
        return (None,) * 8
    *grads, dstate = _selective_scan_backward(dy, dlast, *ctx.saved_tensors, *ctx.settings)
    return *grads, dstate if ctx.has_state else None, None, None


_selective_scan_backward = define_operator(
    "selective_scan_backward(Tensor? dy, Tensor? dlast, Tensor x, Tensor dt, Tensor A, Tensor b, Tensor c, "
    "Tensor kept, int chunk, str backend) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    implementation=_backward,
    fake=_backward_fake,
    vmap=partial(join_replicas, inputs=(2, 1, 2, 2, 0, 2, 2, 2), outputs=(2, 2, 0, 2, 2, 1)),
)

_selective_scan = define_operator(
    "selective_scan(Tensor x, Tensor dt, Tensor A, Tensor b, Tensor c, Tensor? state, int chunk, str backend) "
    "-> (Tensor, Tensor, Tensor)",
    implementation=_forward,
    fake=_forward_fake,
    vmap=partial(join_replicas, inputs=(2, 2, 0, 2, 2, 1), outputs=(2, 1, 2)),
    setup_context=_setup_context,
    backward=_differentiate,
)
