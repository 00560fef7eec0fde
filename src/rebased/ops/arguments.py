"""What ``rebased::attend`` takes, named; its backward takes the same and more."""

from typing import NamedTuple

import torch
from torch import Tensor

from rebased.kernels import TermKernel
from rebased.monomials import num_features
from rebased.ops.dtypes import compute_dtype
from rebased.ops.positions import count_sequences

SCHEMA = (
    "Tensor q, Tensor k, Tensor v, Tensor? coefficients, Tensor? key_mask, Tensor? state_values, "
    "Tensor? state_normalizer, Tensor? cu_seqlens, Tensor? at, int[] degrees, float scale, float eps, "
    "bool normalize, bool causal, bool nonnegative, bool sum_of_squares, str backend"
)
"""The arguments in torch's schema language."""


def sequence_coefficients(kernel: TermKernel, num_sequences: int, num_heads: int, like: Tensor) -> Tensor | None:
    """(N, H, terms) in the dtype of ``like``'s sums; ``None`` if all are 1, which saves the multiplications."""
    if kernel.is_monic:
        return None
    coefficients = kernel.coefficients(num_heads, dtype=compute_dtype(like), device=like.device)
    return coefficients.expand(num_sequences, -1, -1)


class Arguments(NamedTuple):
    """The operator's inputs, in the order of its schema."""

    q: Tensor
    k: Tensor
    v: Tensor
    coefficients: Tensor | None
    key_mask: Tensor | None
    state_values: Tensor | None
    state_normalizer: Tensor | None
    cu_seqlens: Tensor | None
    at: Tensor | None
    degrees: list[int]
    scale: float
    eps: float
    normalize: bool
    causal: bool
    nonnegative: bool
    sum_of_squares: bool
    """Of a polynomial: that it is nowhere negative, whatever the scores."""
    backend: str

    @property
    def num_sequences(self) -> int:
        return count_sequences(self.q, self.cu_seqlens)

    @property
    def compute_dtype(self) -> torch.dtype:
        return compute_dtype(self.v)

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        E = num_features(self.q.shape[-1], tuple(self.degrees))
        return self.num_sequences, self.v.shape[2], E, self.v.shape[3]


NUM_ARGUMENTS = len(Arguments._fields)
