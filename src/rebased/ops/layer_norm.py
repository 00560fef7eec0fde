"""``rebased::layer_norm``: torch's own, with a rule for stacked replicas.

Torch's rule for vmap compiles for one number of replicas only (torch 2.13); here some leave and the rest go on.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from rebased.ops.opaque import define_composite
from rebased.ops.replicas import stacked

__all__ = ["LayerNorm"]


class LayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` over the last axis."""

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__(width, eps=eps)

    def forward(self, x: Float[Tensor, "*B W"]) -> Float[Tensor, "*B W"]:
        return _OPERATOR(x, self.weight, self.bias, self.eps)


def _normalize(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _normalize_mapped(
    _: Any, info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, int]:
    size = info.batch_size
    x, weight, bias = (stacked(y, dim, size) for y, dim in zip((x, weight, bias), in_dims, strict=False))
    normalized = functional.layer_norm(x, x.shape[-1:], eps=eps)
    each = (size, *(1 for _ in x.shape[1:-1]), x.shape[-1])
    return normalized * weight.view(each) + bias.view(each), 0


_OPERATOR = define_composite(
    "layer_norm(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor",
    implementation=_normalize,
    vmap=_normalize_mapped,
)
