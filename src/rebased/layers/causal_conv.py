"""Depth-wise causal convolution with few taps, as sums of shifted products."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rebased.layers.rows import after_past, last_rows, later, pick

__all__ = ["CausalConv"]


class CausalConv(nn.Module):
    """``y_t = bias + Σ_j weight_j · x_{t-K+1+j}`` in each channel, for K taps; initialised as torch's Conv1d."""

    def __init__(self, width: int, num_taps: int) -> None:
        super().__init__()
        self.num_taps = num_taps
        self.weight = nn.Parameter(torch.empty(width, num_taps))
        self.bias = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.num_taps**-0.5
        for parameter in self.parameters(recurse=False):
            nn.init.uniform_(parameter, -bound, bound)

    def forward(
        self,
        x: Float[Tensor, "B T W"],
        past: Float[Tensor, "B K1 W"] | None,
        at: Int[Tensor, "B P"] | None,
        key_mask: Bool[Tensor, "B T"] | None,
    ) -> tuple[Float[Tensor, "B P W"], Float[Tensor, "B K1 W"]]:
        """Outputs, and the last K-1 inputs for the next call; real tokens come first in each row."""
        B, T, W = x.shape
        K = self.num_taps
        joined = after_past(x, past, K - 1)  # (B, K - 1 + T, W)
        shape = (B, T if at is None else at.shape[1], W)
        y = self.bias.expand(shape)
        for tap in range(K):
            if past is None and at is None and torch.compiler.is_compiling():
                # Of a padded x the compiler would write a copy, keep it for the backward pass, and there add up
                # gradients in copies. What is rolled it makes anew, and the gradient of a roll is one.
                part = later(self.weight[:, tap] * x, K - 1 - tap)
            else:
                part = self.weight[:, tap] * pick(joined[:, tap : tap + T], at)
            y = y + part
        return y, last_rows(joined, K - 1, key_mask).to(x.dtype if past is None else past.dtype)
