"""One batch of equally long sequences to attend over, as the chunked backend sees it."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from rebased.monomials import num_features
from rebased.ops.dtypes import compute_dtype


@dataclass(frozen=True)
class Part:
    """Some sequences and some key heads, with the query heads that belong to them."""

    batch: slice
    key_heads: slice
    query_heads: slice

    def of_queries(self, x: Shaped[Tensor, "B P H *W"]) -> Shaped[Tensor, "b P h *W"]:
        return x[self.batch, :, self.query_heads]

    def of_keys(self, x: Shaped[Tensor, "B T Hk *W"]) -> Shaped[Tensor, "b T hk *W"]:
        return x[self.batch, :, self.key_heads]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One call's tensors and settings, for the forward and the backward pass alike."""

    q: Float[Tensor, "B P H F"]
    k: Float[Tensor, "B T Hk F"]
    v: Float[Tensor, "B T Hk D"]
    coefficients: Float[Tensor, "B H terms"] | None
    """``None``: all ones, which saves the multiplications."""
    key_mask: Bool[Tensor, "B T"] | None
    state: Float[Tensor, "B Hk E D1"] | None
    """values and normaliser side by side, in the compute dtype."""
    at: Int[Tensor, "B P"] | None
    degrees: tuple[int, ...]
    scale: float
    eps: float
    normalize: bool
    causal: bool
    nonnegative: bool

    @property
    def compute_dtype(self) -> torch.dtype:
        return compute_dtype(self.v)

    @property
    def sums_shape(self) -> tuple[int, int, int, int]:
        """Of a state as it is computed with: values and normaliser side by side."""
        B, _, Hk, D = self.v.shape
        return B, Hk, num_features(self.q.shape[-1], self.degrees), D + 1

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.q.shape[2] // self.k.shape[2]

    def part(self, part: Part) -> "Problem":
        """The problem of some of the sequences and heads."""
        batch = part.batch
        return replace(
            self,
            q=part.of_queries(self.q),
            k=part.of_keys(self.k),
            v=part.of_keys(self.v),
            coefficients=None if self.coefficients is None else self.coefficients[batch, part.query_heads],
            key_mask=None if self.key_mask is None else self.key_mask[batch],
            state=None if self.state is None else self.state[batch, part.key_heads],
            at=None if self.at is None else self.at[batch],
        )

    def rows(self, x: Float[Tensor, "X rows H W"]) -> Float[Tensor, "X Hk R W"]:
        """Query heads that share a key head side by side, R = G · rows; in the compute dtype."""
        x = x.unflatten(2, (self.k.shape[2], -1)).permute(0, 2, 3, 1, 4)
        return contiguous(x, self.compute_dtype).flatten(2, 3)

    def columns(self, x: Float[Tensor, "X rows H W"]) -> Float[Tensor, "X Hk W R"]:
        """The transpose of `rows`, as contiguous memory."""
        x = x.unflatten(2, (self.k.shape[2], -1)).permute(0, 2, 4, 3, 1)
        return contiguous(x, self.compute_dtype).flatten(3, 4)

    def per_query(self, rows: Float[Tensor, "X Hk R W"]) -> Float[Tensor, "X rows H W"]:
        """The inverse of `rows`."""
        return rows.unflatten(2, (self.group, -1)).permute(0, 3, 1, 2, 4).flatten(2, 3)


def contiguous(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast and lay out in one copy."""
    return x.contiguous() if x.dtype == dtype else x.to(dtype, memory_format=torch.contiguous_format)
