"""A linear state space model with a diagonal of complex numbers for its matrix: S4D (Gu et al. 2022)."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from rebased.layers.rows import last_rows
from rebased.ops.dtypes import compute_dtype, no_autocast
from rebased.ops.long_conv import long_conv

__all__ = ["DiagonalSSM"]

MIN_STEP, MAX_STEP = 1e-3, 1e-1
CHUNK = 64
"""Powers A^t are products A^(64·i) · A^j, so that those of T times are 64 + T / 64 numbers each."""


class DiagonalSSM(nn.Module):
    """``s_t = Ā s_{t-1} + B̄ u_t``, ``y_t = 2 Re(C s_t) + d u_t`` in each channel, with state_dim / 2 complex numbers s.

    Ā = exp(step · A) and B̄ = (Ā - 1) / A: zero-order hold, B = 1. A begins as S4D-Lin, -1/2 + iπn for n = 0, 1, …; C
    and d as normal, the steps log-uniform in [0.001, 0.1]. Real parts of A and steps are learned as logarithms, so
    |Ā| < 1 always. Complex numbers are pairs of real ones, in parameters and states: compilers know no others.
    """

    def __init__(self, width: int, state_dim: int) -> None:
        super().__init__()
        half = state_dim // 2
        self.log_step = nn.Parameter(torch.empty(width))
        self.log_decay = nn.Parameter(torch.empty(width, half))
        self.frequency = nn.Parameter(torch.empty(width, half))
        self.readout = nn.Parameter(torch.empty(width, half, 2))
        self.skip = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.log_step, math.log(MIN_STEP), math.log(MAX_STEP))
        nn.init.constant_(self.log_decay, math.log(0.5))
        with torch.no_grad():
            self.frequency.copy_(math.pi * torch.arange(self.frequency.shape[1]))
        nn.init.normal_(self.readout, std=0.5**0.5)
        nn.init.normal_(self.skip)

    def forward(
        self,
        u: Float[Tensor, "B T W"],
        hidden: Float[Tensor, "B W N 2"] | None,
        key_mask: Bool[Tensor, "B T"] | None,
    ) -> tuple[Float[Tensor, "B T W"], Float[Tensor, "B W N 2"] | None]:
        """Outputs and, if there was one, the state after the last real token; real ones come first in each row.

        In float32 at least. The state is s / B̄: the sum of inputs times powers of Ā.
        """
        dtype = compute_dtype(u)
        u = u.to(dtype)
        T = u.shape[1]
        C = max(1, min(T, CHUNK))
        with no_autocast(u):
            near = self._powers(torch.arange(C, device=u.device, dtype=dtype))  # (W, N, C, 2)
            far = self._powers(torch.arange(0, T, C, device=u.device, dtype=dtype))  # (W, N, T / C, 2)
            readout = self._readout(dtype)  # (W, N, 2)
            kernel = _real_parts(_product(readout[:, :, None], far), near)[:, :T]  # (W, T)
            y = long_conv(u, kernel.T) + self.skip.to(dtype) * u
            if hidden is None:
                return y, None
            one = torch.ones(1, device=u.device, dtype=dtype)
            echo = _product(hidden, _product(readout, self._powers(one)[:, :, 0]))  # (B, W, N, 2)
            y = y + _real_parts(_product(echo[..., None, :], far), near)[..., :T].transpose(1, 2)
            return y, self._next(u, hidden, key_mask, near, far)

    def _next(
        self, u: Tensor, hidden: Tensor, key_mask: Tensor | None, near: Tensor, far: Tensor
    ) -> Float[Tensor, "B W N 2"]:
        """``Ā^n hidden + Σ_t Ā^(n-1-t) u_t`` for rows of n tokens."""
        T, C = u.shape[1], near.shape[2]
        count = u.new_full(u.shape[:1], T)
        if key_mask is not None:
            u = last_rows(functional.pad(u, (0, 0, T, 0)), T, key_mask)
            count = key_mask.sum(dim=1).to(u.dtype)
        latest = functional.pad(u.flip(1), (0, 0, 0, -T % C)).unflatten(1, (-1, C))  # (B, T / C, C, W)
        sums = torch.einsum("bicw,wncz->bwniz", latest, near)
        decay = self._powers(count).permute(2, 0, 1, 3)  # (B, W, N, 2)
        return _product(decay, hidden) + _product(far, sums).sum(dim=3)

    def _powers(self, exponents: Float[Tensor, " E"]) -> Float[Tensor, "W N E 2"]:
        """Of Ā."""
        decay, angle = self._exponent(exponents.dtype)
        size = torch.exp(decay[..., None] * exponents)
        angles = angle[..., None] * exponents
        return torch.stack([size * angles.cos(), size * angles.sin()], dim=-1)

    def _readout(self, dtype: torch.dtype) -> Float[Tensor, "W N 2"]:
        """``2 C B̄``."""
        decay, angle = self._exponent(dtype)
        # exp(decay + i angle) - 1, which must not be a difference of numbers close to 1.
        real = decay.expm1() * angle.cos() - 2 * (angle / 2).sin().square()
        difference = torch.stack([real, decay.exp() * angle.sin()], dim=-1)
        conjugate = torch.stack([decay, -angle], dim=-1)
        step = self.log_step.to(dtype).exp()[:, None, None]
        quotient = step * _product(difference, conjugate) / (decay.square() + angle.square())[..., None]
        return 2 * _product(self.readout.to(dtype), quotient)

    def _exponent(self, dtype: torch.dtype) -> tuple[Float[Tensor, "W N"], Float[Tensor, "W N"]]:
        step = self.log_step.to(dtype).exp()[:, None]
        return -self.log_decay.to(dtype).exp() * step, self.frequency.to(dtype) * step


def _product(x: Float[Tensor, "*S 2"], y: Float[Tensor, "*R 2"]) -> Float[Tensor, "*SR 2"]:
    """Of complex numbers."""
    (a, b), (c, d) = x.unbind(-1), y.unbind(-1)
    return torch.stack([a * c - b * d, a * d + b * c], dim=-1)


def _real_parts(x: Float[Tensor, "*B W N I 2"], y: Float[Tensor, "W N C 2"]) -> Float[Tensor, "*B W IC"]:
    """``Re Σ_n x_{n i} y_{n c}`` for all i and c, which together count time."""
    real, imaginary = x.unbind(-1)
    return torch.einsum("...wniz,wncz->...wic", torch.stack([real, -imaginary], dim=-1), y).flatten(-2)
