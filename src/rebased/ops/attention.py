"""Kernel attention over sequences: arguments are checked here, a backend does the work."""

from dataclasses import dataclass
from typing import Literal, overload

from jaxtyping import Bool, Float, Int
from torch import Tensor

from rebased.kernels import REBASED, Kernel, TermKernel
from rebased.ops import checks, operator, reference
from rebased.ops.arguments import sequence_coefficients
from rebased.ops.backends import BACKENDS, choose_backend
from rebased.ops.dtypes import autocast_inputs, compute_dtype, no_autocast
from rebased.ops.normalize import divide
from rebased.ops.positions import count_sequences, token_counts, token_positions
from rebased.ops.state import KernelState, count_features

__all__ = ["BACKENDS", "attention_matrix", "kernel_attention"]


@overload
def kernel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel = ...,
    *,
    scale: float | None = ...,
    eps: float = ...,
    normalize: bool = ...,
    causal: bool = ...,
    key_mask: Tensor | None = ...,
    state: KernelState | None = ...,
    return_state: Literal[False] = ...,
    cu_seqlens: Tensor | None = ...,
    at: Tensor | None = ...,
    backend: str = ...,
) -> Tensor: ...
@overload
def kernel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel = ...,
    *,
    scale: float | None = ...,
    eps: float = ...,
    normalize: bool = ...,
    causal: bool = ...,
    key_mask: Tensor | None = ...,
    state: KernelState | None = ...,
    return_state: Literal[True],
    cu_seqlens: Tensor | None = ...,
    at: Tensor | None = ...,
    backend: str = ...,
) -> tuple[Tensor, KernelState]: ...
def kernel_attention(
    q: Float[Tensor, "B P H F"],
    k: Float[Tensor, "B T Hk F"],
    v: Float[Tensor, "B T Hk D"],
    kernel: Kernel = REBASED,
    *,
    scale: float | None = None,
    eps: float = 1e-12,
    normalize: bool = True,
    causal: bool = True,
    key_mask: Bool[Tensor, "B T"] | None = None,
    state: KernelState | None = None,
    return_state: bool = False,
    cu_seqlens: Int[Tensor, " N1"] | None = None,
    at: Int[Tensor, "B P"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "B P H D"] | tuple[Float[Tensor, "B P H D"], KernelState]:
    """``out_i = Σ_{j<=i} sim(q_i, k_j) v_j / (Σ_{j<=i} sim(q_i, k_j) + eps)``, in time linear in T.

    ``sim`` is the kernel's similarity of ``scale · q`` and ``k``. Without ``normalize`` the sum is not divided;
    without ``causal`` every query sees every key. The keys' number of heads Hk divides H: head h of the queries meets
    head h // (H / Hk) of the keys.

    ``key_mask`` is True at real keys: others enter no sum and no state, whatever they hold, and count as no position.
    ``state`` is what an earlier call left of the tokens before these; with ``return_state`` the result is a pair,
    output and new state. A sequence whole, in pieces or token by token gives the same outputs and gradients.
    ``cu_seqlens`` (0, …, T) marks the borders of N sequences packed in a row of batch size 1; the state then has
    batch size N. ``at`` (B, P): the queries are only these P positions among the T keys, in any order.

    Sums are kept in float32, for float64 inputs in float64; under autocast inputs are cast first. For non-negative
    kernels the output is finite, inside the range of v and 0 up to rounding (docs/numerics.md says how far), and 0
    where every similarity is zero.

    Backends: "reference" is the definition, quadratic; "chunked" is linear, in plain torch; "triton" is linear and
    fast, for polynomials on a CUDA device; "auto" chooses. Raises ValueError (TypeError for a wrong type) that names
    the argument.
    """
    checks.check_settings(kernel, scale, eps, normalize=normalize, causal=causal, return_state=return_state)
    call = _prepare(q, k, v, kernel, scale, eps, normalize, key_mask, state, cu_seqlens, at)
    backend = choose_backend(backend, call.q, kernel)
    if backend == "reference":
        out, values, normalizer = _run_reference(call, normalize=normalize, causal=causal, return_state=return_state)
    else:
        out, values, normalizer = _run_operator(
            call, backend, normalize=normalize, causal=causal, return_state=return_state
        )
    if values is None or normalizer is None:
        return out
    count = token_counts(call.key_mask, call.cu_seqlens, call.k)
    if state is None:
        return out, KernelState.of_sums(kernel.name, values, normalizer, count)
    return out, state.plus(values, normalizer, count)


def attention_matrix(
    q: Float[Tensor, "B P H F"],
    k: Float[Tensor, "B T Hk F"],
    kernel: Kernel = REBASED,
    *,
    scale: float | None = None,
    eps: float = 1e-12,
    normalize: bool = True,
    causal: bool = True,
    key_mask: Bool[Tensor, "B T"] | None = None,
    cu_seqlens: Int[Tensor, " N1"] | None = None,
    at: Int[Tensor, "B P"] | None = None,
) -> Float[Tensor, "B H P T"]:
    """The weight of every key in every query's output: what `kernel_attention` never writes down, for looking at.

    Rows sum to 1 (to 0 where every similarity is zero), or to the normaliser without ``normalize``. float32, or
    float64 for float64 inputs.
    """
    checks.check_settings(kernel, scale, eps, normalize=normalize, causal=causal)
    call = _prepare(q, k, k, kernel, scale, eps, normalize, key_mask, None, cu_seqlens, at)
    q, k = call.q.to(compute_dtype(call.q)), call.k.to(compute_dtype(call.q))
    if key_mask is not None:
        k = k.where(key_mask[..., None, None], 0)
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    visible = reference.visible_keys(k, causal=causal, key_mask=key_mask, cu_seqlens=call.cu_seqlens, at=call.at)
    with no_autocast(q):
        sim = kernel.similarity(q, k, call.q_positions, call.positions, scale=call.scale)
    sim = sim.masked_fill(~visible[:, None], 0)
    if not normalize:
        return sim
    return divide(sim, sim.sum(dim=-1, keepdim=True), eps=call.eps, nonnegative=kernel.nonnegative)


@dataclass(frozen=True, kw_only=True)
class _Call:
    """Arguments that have been checked, cast and completed."""

    q: Tensor
    k: Tensor
    v: Tensor
    kernel: Kernel
    scale: float
    eps: float
    key_mask: Tensor | None
    state: KernelState | None
    cu_seqlens: Tensor | None
    at: Tensor | None
    positions: Tensor | None
    """Of the keys; ``None`` if the kernel does not look at positions."""

    @property
    def q_positions(self) -> Tensor | None:
        return self.positions if self.positions is None or self.at is None else self.positions.gather(1, self.at)


def _prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    scale: float | None,
    eps: float,
    normalize: bool,
    key_mask: Tensor | None,
    state: KernelState | None,
    cu_seqlens: Tensor | None,
    at: Tensor | None,
) -> _Call:
    checks.check_qkv(q, k, v, axes="B T H F")
    checks.check_queries(q, k, at)
    q, k, v = autocast_inputs(q, k, v)
    checks.check_same_dtype(q, k, v)
    if key_mask is not None:
        checks.check_key_mask(key_mask, k.shape[:2], q.device)
    if cu_seqlens is not None:
        checks.check_cu_seqlens(cu_seqlens, k.shape[0], q.device)
        cu_seqlens = checks.checked_borders(cu_seqlens, k.shape[1])
    if at is not None:
        at = checks.checked_positions(at, k.shape[1], "at")
    if state is not None:
        E = count_features(kernel, q.shape[-1], dtype=compute_dtype(q), device=q.device)
        shape = (count_sequences(k, cu_seqlens), k.shape[2], E, v.shape[-1])
        checks.check_state(state, kernel, shape=shape, dtype=compute_dtype(q), device=q.device)
    positions = None
    if kernel.max_len is not None:
        positions = token_positions(key_mask, cu_seqlens, None if state is None else state.count, k)
        positions = checks.checked_positions(positions, kernel.max_len, "the sequence's positions (kernel.max_len)")
    scale, eps = kernel.resolve(q.shape[-1], scale, eps, normalize=normalize)
    return _Call(
        q=q,
        k=k,
        v=v,
        kernel=kernel,
        scale=scale,
        eps=eps,
        key_mask=key_mask,
        state=state,
        cu_seqlens=cu_seqlens,
        at=at,
        positions=positions,
    )


Sums = tuple[Tensor, Tensor | None, Tensor | None]
"""What a backend returns: the output and, if asked for, Σ φ(k)vᵀ and Σ φ(k) over this call's keys."""


def _run_reference(call: _Call, *, normalize: bool, causal: bool, return_state: bool) -> Sums:
    with no_autocast(call.q):
        out, values, normalizer = reference.attend(
            call.q.to(compute_dtype(call.q)),
            call.k.to(compute_dtype(call.q)),
            call.v.to(compute_dtype(call.q)),
            call.kernel,
            scale=call.scale,
            eps=call.eps,
            normalize=normalize,
            causal=causal,
            key_mask=call.key_mask,
            state=call.state,
            return_state=return_state,
            cu_seqlens=call.cu_seqlens,
            at=call.at,
            positions=call.positions,
        )
    return out.to(call.v.dtype), values, normalizer


def _run_operator(call: _Call, backend: str, *, normalize: bool, causal: bool, return_state: bool) -> Sums:
    kernel, q, k, scale = call.kernel, call.q, call.k, call.scale
    coefficients = None
    if isinstance(kernel, TermKernel):
        degrees = kernel.degrees
        count_features(kernel, q.shape[-1], dtype=compute_dtype(q), device=q.device)  # raises if they are too many
        coefficients = sequence_coefficients(kernel, count_sequences(q, call.cu_seqlens), q.shape[2], q)
    else:
        # A feature map runs here, in full precision and in sight of torch; what is left is the kernel s = qᵀk.
        if call.key_mask is not None:  # a map's backward would make NaN of what a masked key holds
            k = k.where(call.key_mask[..., None, None], 0)
        with no_autocast(q):
            q = kernel.query_features(q.to(compute_dtype(q)), call.q_positions, scale=scale)
            k = kernel.key_features(k.to(compute_dtype(k)), call.positions)
        checks.check_features(kernel, q, call.q)
        checks.check_features(kernel, k, call.k)
        degrees, scale = (1,), 1.0
    out, _, values, normalizer = operator.attend(
        q,
        k,
        call.v,
        coefficients,
        call.key_mask,
        None if call.state is None else call.state.values,
        None if call.state is None else call.state.normalizer,
        call.cu_seqlens,
        call.at,
        degrees,
        scale,
        call.eps,
        normalize,
        causal,
        kernel.nonnegative,
        isinstance(kernel, TermKernel) and kernel.is_sum_of_squares,
        backend,
        return_state,
    )
    return (out, values, normalizer) if return_state else (out, None, None)
