"""Long filters as functions of time: a small network of sines under a decaying window."""

import itertools
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rebased.ops.dtypes import no_autocast

__all__ = ["ImplicitFilter"]

DECAY_TARGET = 1e-2
FAST_DECAY, SLOW_DECAY = 0.3, 1.5
"""After these fractions of seq_len the windows of the last and of the first channel have fallen to DECAY_TARGET."""


class ImplicitFilter(nn.Module):
    """``h_t = exp(-rate · t) · network(features(t))``, for ``num_filters`` filters of ``width`` channels.

    Equation 7 and appendix D.3 of Poli et al. 2023. Time t runs from 0 to 1 over ``seq_len`` taps; its features are t
    and the real and imaginary parts of exp(2πi·k·tap / seq_len) for k below ``num_frequencies``. The network has
    ``num_inner_layers`` layers between its first and its last, all ``hidden_dim`` wide, and after each but the last
    sin(frequency ⊙ ·), with a learned frequency for each unit, the same in all layers. Rates are fixed, equally spaced
    over the channels and alike in each filter; how fast windows fall is as in the authors' code.

    Weights begin as those of `nn.Linear` but are not in one: what a model does to its Linears would make all filters
    about zero.
    """

    def __init__(
        self,
        num_filters: int,
        width: int,
        *,
        seq_len: int,
        hidden_dim: int,
        num_frequencies: int,
        num_inner_layers: int,
        sine_frequency: float,
    ) -> None:
        super().__init__()
        self.num_filters, self.seq_len, self.num_frequencies = num_filters, seq_len, num_frequencies
        sizes = [2 * num_frequencies + 1, *[hidden_dim] * (num_inner_layers + 1)]
        self.sine_frequency = float(sine_frequency)
        self.weights = nn.ParameterList(torch.empty(n, m) for m, n in itertools.pairwise(sizes))
        self.biases = nn.ParameterList(torch.empty(n) for n in sizes[1:])
        self.out_weight = nn.Parameter(torch.empty(num_filters * width, hidden_dim))
        self.frequency = nn.Parameter(torch.empty(hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight, bias in zip(self.weights, self.biases, strict=True):
            bound = weight.shape[1] ** -0.5
            nn.init.uniform_(weight, -bound, bound)
            nn.init.uniform_(bias, -bound, bound)
        bound = self.out_weight.shape[1] ** -0.5
        nn.init.uniform_(self.out_weight, -bound, bound)
        nn.init.constant_(self.frequency, self.sine_frequency)

    def forward(self, num_taps: int, dtype: torch.dtype) -> Float[Tensor, "L N W"]:
        """The first taps, computed in ``dtype`` also under autocast."""
        with no_autocast(self.frequency):
            taps = torch.arange(num_taps, device=self.frequency.device)[:, None]  # (L, 1)
            time = taps.to(dtype) / max(self.seq_len - 1, 1)
            x = self._features(taps, time)
            frequency = self.frequency.to(dtype)
            for weight, bias in zip(self.weights, self.biases, strict=True):
                x = torch.sin(frequency * functional.linear(x, weight.to(dtype), bias.to(dtype)))
            filters = functional.linear(x, self.out_weight.to(dtype)).unflatten(-1, (self.num_filters, -1))
            return filters * self._window(time, filters.shape[-1])[:, None]

    def _features(self, taps: Int[Tensor, "L 1"], time: Float[Tensor, "L 1"]) -> Float[Tensor, "L E"]:
        k = torch.arange(self.num_frequencies, device=taps.device)
        turns = (k * taps % self.seq_len).to(time.dtype)  # whole turns leave exactly, before anything is rounded
        angles = 2 * math.pi / self.seq_len * turns
        return torch.cat([time, angles.cos(), angles.sin()], dim=-1)

    def _window(self, time: Float[Tensor, "L 1"], width: int) -> Float[Tensor, "L W"]:
        slow, fast = (-math.log(DECAY_TARGET) / fraction for fraction in (SLOW_DECAY, FAST_DECAY))
        rates = torch.linspace(slow, fast, width, device=time.device, dtype=time.dtype)
        return torch.exp(-rates * time)
