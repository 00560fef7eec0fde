"""One token at a time: what decoding does."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rebased.kernels import REBASED, Kernel, Polynomial, TermKernel
from rebased.ops import checks, step_operator
from rebased.ops.arguments import sequence_coefficients
from rebased.ops.backends import choose_step_backend
from rebased.ops.differentiation import is_differentiated
from rebased.ops.dtypes import autocast_inputs, compute_dtype, no_autocast
from rebased.ops.normalize import divide, drop_rounding
from rebased.ops.positions import token_positions
from rebased.ops.state import KernelState, count_features

__all__ = ["kernel_attention_step"]


def kernel_attention_step(
    q: Float[Tensor, "B H F"],
    k: Float[Tensor, "B Hk F"],
    v: Float[Tensor, "B Hk D"],
    state: KernelState,
    kernel: Kernel = REBASED,
    *,
    scale: float | None = None,
    eps: float = 1e-12,
    normalize: bool = True,
    key_mask: Bool[Tensor, " B"] | None = None,
    inplace: bool = False,
    backend: str = "auto",
) -> tuple[Float[Tensor, "B H D"], KernelState]:
    """Absorb one token into ``state`` and return its output and the new state.

    ``S += φ(k)vᵀ``, ``z += φ(k)``, ``out = φ(q)·S / (φ(q)·z + eps)``: position t of `kernel_attention`, if ``state``
    held tokens 0..t-1. Where ``key_mask`` is False the token is not absorbed, and the output is that of the state
    alone. ``inplace`` writes the given state's tensors and returns the same object; it is not for training.

    Backends: "torch" is plain torch; "triton" is one launch, for polynomials on a CUDA device where no gradient is
    asked for; "auto" takes it where it can.
    """
    checks.check_settings(kernel, scale, eps, normalize=normalize, inplace=inplace)
    checks.check_qkv(q, k, v, axes="B H F")
    q, k, v = autocast_inputs(q, k, v)
    checks.check_same_dtype(q, k, v)
    E = count_features(kernel, q.shape[-1], dtype=compute_dtype(q), device=q.device)
    shape = (k.shape[0], k.shape[1], E, v.shape[-1])
    checks.check_state(state, kernel, shape=shape, dtype=compute_dtype(q), device=q.device)
    if key_mask is not None:
        checks.check_key_mask(key_mask, k.shape[:1], q.device)
    positions = None
    if kernel.max_len is not None:
        positions = token_positions(None if key_mask is None else key_mask[:, None], None, state.count, k[:, None])
        positions = checks.checked_positions(positions, kernel.max_len, "state.count (kernel.max_len)")
    terms = [x for x in kernel.terms if isinstance(x, Tensor)] if isinstance(kernel, TermKernel) else []
    needs_grad = any(is_differentiated(x) for x in (q, k, v, state.values, state.normalizer, *terms))
    scale, eps = kernel.resolve(q.shape[-1], scale, eps, normalize=normalize)
    if choose_step_backend(backend, q, v, state, kernel, needs_grad=needs_grad) == "triton":
        return _in_one_launch(q, k, v, state, kernel, scale, eps, normalize, key_mask, inplace)
    return _in_torch(q, k, v, state, kernel, scale, eps, normalize, key_mask, inplace, positions)


def _in_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: KernelState,
    kernel: Kernel,
    scale: float,
    eps: float,
    normalize: bool,
    key_mask: Tensor | None,
    inplace: bool,
    positions: Tensor | None,
) -> tuple[Tensor, KernelState]:
    out_dtype = v.dtype
    q, k, v = (x.to(compute_dtype(x)) for x in (q, k, v))
    if key_mask is not None:
        k, v = k.where(key_mask[:, None, None], 0), v.where(key_mask[:, None, None], 0)
    group = q.shape[1] // k.shape[1]
    with no_autocast(q):
        q_features = kernel.query_features(q[:, None], positions, scale=scale)[:, 0].unflatten(1, (-1, group))
        k_features = kernel.key_features(k[:, None], positions)[:, 0]
        own = kernel.similarity(
            q[:, None], k[:, None].repeat_interleave(group, dim=2), positions, positions, scale=scale
        )[..., 0]  # (B, H, 1): the token's own similarity, computed directly
        if key_mask is not None:
            k_features = k_features.where(key_mask[:, None, None], 0)
            own = own.where(key_mask[:, None, None], 0)
        out = torch.einsum("bkge,bked->bkgd", q_features, state.values)
        normalizer = torch.einsum("bkge,bke->bkg", q_features, state.normalizer)[..., None]
        if normalize and kernel.nonnegative:
            magnitude = torch.einsum("bkge,bke->bkg", q_features.abs(), state.normalizer.abs())[..., None]
            out, normalizer = drop_rounding(out, normalizer, magnitude)
        out = out.flatten(1, 2) + own * v.repeat_interleave(group, dim=1)
        if normalize:
            out = divide(out, normalizer.flatten(1, 2) + own, eps=eps, nonnegative=kernel.nonnegative)
        needs_grad = any(x.requires_grad for x in (q_features, k_features, v, state.values, state.normalizer))
        if inplace and torch.is_grad_enabled() and needs_grad:
            raise ValueError("inplace=True overwrites what gradients need; use it under torch.no_grad()")
        count = torch.ones_like(state.count) if key_mask is None else key_mask.to(state.count.dtype)
        outer = k_features[..., None] * v[..., None, :]
    return out.to(out_dtype), state.plus(outer, k_features, count, inplace=inplace)


def _in_one_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: KernelState,
    kernel: Kernel,
    scale: float,
    eps: float,
    normalize: bool,
    key_mask: Tensor | None,
    inplace: bool,
) -> tuple[Tensor, KernelState]:
    assert isinstance(kernel, Polynomial)
    coefficients = sequence_coefficients(kernel, q.shape[0], q.shape[1], q)
    settings = kernel.degrees, scale, eps, normalize, kernel.nonnegative
    arguments = q, k, v, coefficients, key_mask, *state.tensors(), *settings
    if inplace:
        return step_operator.step_inplace(*arguments), state
    out, values, normalizer, count, *residuals = step_operator.step(*arguments)
    return out, KernelState(values, normalizer, count, state.kernel, *residuals)
