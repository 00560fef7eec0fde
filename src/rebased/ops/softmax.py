"""``rebased::softmax_attention``: torch's own attention, with a rule for stacked replicas."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch._C import _functorch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from rebased.ops.dtypes import sums_dtype
from rebased.ops.opaque import define_composite
from rebased.ops.replicas import stacked

__all__ = ["softmax_attention", "softmax_weights"]


def softmax_attention(
    q: Float[Tensor, "B P H D"],
    k: Float[Tensor, "B S Hk D"],
    v: Float[Tensor, "B S Hk D"],
    visible: Bool[Tensor, "#B P S"] | None,
    causal: bool,
    dropout: float,
) -> Float[Tensor, "B P H D"]:
    """Softmax attention over the ``visible`` keys, or those up to each query (``causal``), or all of them."""
    num_heads, num_key_heads = q.shape[2], k.shape[2]
    mask = None if visible is None else visible[:, None]
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    if q.shape[1] == 1:
        # The queries that share a key head stand beside each other like tokens: keys are read once.
        grouped = q.unflatten(2, (num_key_heads, -1)).squeeze(1)
        return _OPERATOR(grouped, k, v, mask, causal, dropout).flatten(1, 2)[:, None]
    if mask is not None and num_key_heads != num_heads:
        # The memory-efficient CUDA kernel takes masks, but not fewer key heads.
        k, v = (x.repeat_interleave(num_heads // num_key_heads, dim=1) for x in (k, v))
    return _OPERATOR(q.transpose(1, 2), k, v, mask, causal, dropout).transpose(1, 2)


def softmax_weights(
    q: Float[Tensor, "B P H D"], k: Float[Tensor, "B S Hk D"], visible: Bool[Tensor, "#B P S"] | None, causal: bool
) -> Float[Tensor, "B H P S"]:
    """What values are multiplied with in `softmax_attention`; ``causal`` means as many queries as keys."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = torch.einsum("bphd,bshd->bhps", q * q.shape[3] ** -0.5, k)
    if causal:
        visible = torch.ones(1, q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril()
    if visible is not None:
        scores = scores.where(visible[:, None], float("-inf"))
    return scores.softmax(dim=-1, dtype=sums_dtype(scores.dtype)).to(q.dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float) -> Tensor:
    """For q (B, H, P, D), k and v (B, Hk, S, D) and a mask (1 or B, 1, P, S)."""
    grouped = bool(q.shape[1] != k.shape[1])  # torch takes no symbol for it
    backends = None
    if _vmap_is_left():
        backends = [SDPBackend.MATH]
    elif q.is_cuda and q.shape[2] != k.shape[2]:
        backends = _BACKENDS_OF_STEPS
    if backends is not None:
        with sdpa_kernel(backends):
            return scaled_dot_product_attention(q, k, v, mask, dropout, causal, enable_gqa=grouped)
    return scaled_dot_product_attention(q, k, v, mask, dropout, causal, enable_gqa=grouped)


_BACKENDS_OF_STEPS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Of a token generated: not cuDNN, which makes a plan, in 5 ms, for every number of keys that it has not seen yet."""


def _vmap_is_left() -> bool:
    """Whether this is torch.func.grad inside vmap: the fused kernels' backward passes have no batching rule."""
    stack = _functorch.get_interpreter_stack() or []
    return any(level.key() == _functorch.TransformType.Vmap for level in stack)


def _attend_mapped(operator: Any, info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
    """Replicas as a larger batch, or as more heads where they share a mask: it need not be copied then."""
    q, k, v, mask, causal, dropout = inputs
    if dropout and info.randomness != "different":
        raise RuntimeError(f"dropout under vmap needs randomness='different', got {info.randomness!r}")
    N = info.batch_size
    axis = 0 if mask is None or in_dims[3] is not None else 1
    q, k, v = (stacked(x, dim, N, axis) for x, dim in zip((q, k, v), in_dims[:3], strict=True))
    sizes = q.shape[axis : axis + 2]  # not inferred later: there may be no replicas
    q, k, v = (x.flatten(axis, axis + 1) for x in (q, k, v))
    if mask is not None and axis == 0:
        mask = mask.movedim(in_dims[3], 0)
        mask = mask.expand(*sizes, *mask.shape[2:]).flatten(0, 1)
    out = operator(q, k, v, mask, causal, dropout)
    return out.unflatten(axis, sizes), axis


# Torch's own batching rules for scaled_dot_product_attention lack the CPU kernel and masks that all replicas share
# (torch 2.13). An operator that is a composite to autograd and compilers, but has a rule, makes replicas a batch.
_OPERATOR = define_composite(
    "softmax_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float dropout) -> Tensor",
    implementation=_attend,
    vmap=_attend_mapped,
)
