"""One batch of equally long sequences to attend over, as the chunked backend sees it."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rebased.monomials import num_features


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
        return torch.float64 if self.v.dtype == torch.float64 else torch.float32

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        B, _, Hk, D = self.v.shape
        return B, Hk, num_features(self.q.shape[-1], self.degrees), D + 1

    def part(self, batch: slice) -> "Problem":
        """The problem of some of the sequences."""

        def take(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[batch]

        return replace(
            self,
            q=self.q[batch],
            k=self.k[batch],
            v=self.v[batch],
            coefficients=take(self.coefficients),
            key_mask=take(self.key_mask),
            state=take(self.state),
            at=take(self.at),
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
        group = self.q.shape[2] // self.k.shape[2]
        return rows.unflatten(2, (group, -1)).permute(0, 3, 1, 2, 4).flatten(2, 3)


def contiguous(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast and lay out in one copy."""
    return x.contiguous() if x.dtype == dtype else x.to(dtype, memory_format=torch.contiguous_format)
