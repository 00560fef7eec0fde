"""The token before added to each: the first layer where the paper fixes it, to look at the second one's attention."""

from typing import Any

import torch
from torch import Tensor

from rebased.layers.mixer import Mixer
from rebased.layers.rows import after_past, last_rows, pick
from rebased.layers.short_conv import ConvState

__all__ = ["PreviousToken"]


class PreviousToken(Mixer):
    """``u_t + u_{t-1}``, without parameters: `ShortConv` with the taps (0, 1, 0) and a gate that is always 1."""

    state_type = ConvState

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        # Without weights, this says where the layer has been moved to, and as what.
        self.register_buffer("_place", torch.empty(0), persistent=False)

    def mix(self, x: Tensor, state: ConvState | None, at: Tensor | None, key_mask: Tensor | None) -> tuple[Tensor, Any]:
        joined = after_past(x, None if state is None else state.past, 1)  # (B, 1 + T, M)
        y = pick(joined[:, :-1], at) + pick(x, at)
        past = last_rows(joined, 1, key_mask)
        return y, ConvState(past if state is None else past.to(state.past.dtype))

    def new_state(self, batch_size: int, *, device: torch.device | str, dtype: torch.dtype) -> ConvState:
        return ConvState(torch.zeros(batch_size, 1, self.d_model, device=device, dtype=dtype))
