"""The gated short convolution: the paper's first layer."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rebased.checks import check_integer
from rebased.layers.causal_conv import CausalConv
from rebased.layers.mixer import Mixer
from rebased.layers.rows import pick
from rebased.layers.states import MixerState

__all__ = ["ConvState", "ShortConv"]


@dataclass(frozen=True, eq=False)
class ConvState(MixerState):
    """The last inputs, one fewer than there are taps."""

    past: Float[Tensor, "B K1 M"]


class ShortConv(Mixer):
    """``conv(u) ⊙ (W u + b) + u`` with a depth-wise causal convolution of ``num_taps`` tokens."""

    state_type = ConvState

    def __init__(self, d_model: int, *, num_taps: int = 3) -> None:
        super().__init__(d_model)
        check_integer("num_taps", num_taps)
        self.conv = CausalConv(d_model, num_taps)
        self.proj = nn.Linear(d_model, d_model)

    def mix(self, x: Tensor, state: ConvState | None, at: Tensor | None, key_mask: Tensor | None) -> tuple[Tensor, Any]:
        convolved, past = self.conv(x, None if state is None else state.past, at, key_mask)
        x = pick(x, at)
        return convolved * self.proj(x) + x, ConvState(past)

    def new_state(self, batch_size: int, *, device: torch.device | str, dtype: torch.dtype) -> ConvState:
        return ConvState(torch.zeros(batch_size, self.conv.num_taps - 1, self.d_model, device=device, dtype=dtype))
