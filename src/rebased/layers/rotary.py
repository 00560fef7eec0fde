"""Rotary position embedding (Su et al. 2021, section 3.2): where a token stands, as angles of its queries and keys."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rebased.ops.dtypes import compute_dtype

__all__ = ["rotate"]


def rotate(
    x: Float[Tensor, "B T H D"], positions: Int[Tensor, "#B T"], *, base: float = 10000.0
) -> Float[Tensor, "B T H D"]:
    """``(x_i + j·x_{i+D/2}) · exp(j·position·base^(-2i/D))`` for each i < D/2, as complex numbers; D is even.

    The product of a rotated query and key depends on the difference of their positions only. Pairs are half a head
    apart, as Llama's and GPT-NeoX' are. Angles are computed in float32 or better, whatever x is.
    """
    D = x.shape[-1]
    dtype = compute_dtype(x)
    exponents = torch.arange(0, D, 2, device=x.device, dtype=dtype) / -D
    angles = positions[..., None, None] * base**exponents  # (B, T, 1, D / 2)
    cos, sin = angles.cos(), angles.sin()
    real, imaginary = x.to(dtype).chunk(2, dim=-1)
    return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1).to(x.dtype)
