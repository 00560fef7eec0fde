"""A state's features in two orders: packed, as `KernelState` has them, and square, as the kernels have them.

Packed rows of degree two are the pairs a <= b; the square form has all pairs of FP indices, F padded, and its other
degrees padded likewise. Sums of x_a·x_b are symmetric, so going from packed to square writes each off-diagonal row
twice.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Which rows of the square form hold the packed ones. The square form has the highest degree first."""

    feature_dim: int
    padded: int
    degrees: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Of the square form."""
        return sum(self.padded**degree for degree in self.degrees)

    def to_square(self, packed: Float[Tensor, "N Hk E X"]) -> Float[Tensor, "N Hk rows X"]:
        """Both triangles; padding is zero."""
        square = packed.new_zeros(*packed.shape[:2], self.num_rows, packed.shape[-1])
        upper, lower = self._rows(packed.device)
        square[:, :, upper] = packed
        square[:, :, lower] = packed
        return square

    def to_square_transposed(self, square: Float[Tensor, "N Hk rows X"]) -> Float[Tensor, "N Hk E X"]:
        """The gradient of `to_square`."""
        upper, lower = self._rows(square.device)
        return square[:, :, upper] + square[:, :, lower] * (upper != lower)[:, None]

    def to_packed(self, square: Float[Tensor, "N Hk rows X"]) -> Float[Tensor, "N Hk E X"]:
        """One of two equal triangles."""
        return square[:, :, self._rows(square.device)[0]]

    def to_packed_transposed(self, packed: Float[Tensor, "N Hk E X"]) -> Float[Tensor, "N Hk rows X"]:
        """The gradient of `to_packed`, shared evenly between the triangles so as to be symmetric."""
        square = packed.new_zeros(*packed.shape[:2], self.num_rows, packed.shape[-1])
        upper, lower = self._rows(packed.device)
        square[:, :, upper] += packed / 2
        square[:, :, lower] += packed / 2
        return square

    def _rows(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """For each packed row its place in the upper triangle and in the lower one."""
        upper, lower = [], []
        for degree in self.degrees:
            start = sum(self.padded**higher for higher in self.degrees if higher > degree)
            if degree == 2:
                a, b = torch.triu_indices(self.feature_dim, self.feature_dim, device=device)
                upper.append(start + a * self.padded + b)
                lower.append(start + b * self.padded + a)
            else:
                row = start + torch.arange(self.feature_dim**degree, device=device)
                upper.append(row)
                lower.append(row)
        return torch.cat(upper), torch.cat(lower)
