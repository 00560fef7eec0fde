"""RWKV version 4's time mixing (Peng et al. 2023)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rebased.checks import check_integer
from rebased.layers.mixer import Mixer
from rebased.layers.rows import after_past, last_rows, pick
from rebased.layers.states import MixerState
from rebased.ops.wkv import WKVState, initial_wkv_state, wkv, wkv_step

__all__ = ["RWKV", "RWKVState"]


@dataclass(frozen=True, eq=False)
class RWKVState(MixerState):
    """The last input, and the sums of `rebased.ops.wkv`."""

    past: Float[Tensor, "B 1 M"]
    numerator: Float[Tensor, "B M"]
    denominator: Float[Tensor, "B M"]
    maximum: Float[Tensor, "B M"]


class RWKV(Mixer):
    """``W_o (σ(r) ⊙ wkv(k, v))``, where r, k and v are projections of this token mixed with the one before it.

    Decay, bonus and mixes start as in the published RWKV-4, which spreads them over channels and, by ``layer`` (from 0)
    of ``num_layers``, over depth.
    """

    state_type = RWKVState

    def __init__(self, d_model: int, *, layer: int = 0, num_layers: int = 2) -> None:
        super().__init__(d_model)
        check_integer("num_layers", num_layers)
        check_integer("layer", layer, least=0)
        if layer >= num_layers:
            raise ValueError(f"layer={layer} must be less than num_layers={num_layers}")
        self.layer, self.num_layers = layer, num_layers
        self.log_decay = nn.Parameter(torch.empty(d_model))
        self.bonus = nn.Parameter(torch.empty(d_model))
        self.k_mix = nn.Parameter(torch.empty(d_model))
        self.v_mix = nn.Parameter(torch.empty(d_model))
        self.r_mix = nn.Parameter(torch.empty(d_model))
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.r_proj = nn.Linear(d_model, d_model, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        channel = torch.arange(self.d_model) / max(1, self.d_model - 1)
        fraction = torch.arange(self.d_model) / self.d_model
        depth, height = self.layer / max(1, self.num_layers - 1), 1 - self.layer / self.num_layers
        zigzag = (torch.arange(self.d_model) + 1) % 3 - 1
        with torch.no_grad():
            self.log_decay.copy_(-5 + 8 * channel ** (0.7 + 1.3 * depth))
            self.bonus.copy_(math.log(0.3) + 0.5 * zigzag)
            self.k_mix.copy_(fraction**height)
            self.v_mix.copy_(fraction**height + 0.3 * depth)
            self.r_mix.copy_(fraction ** (0.5 * height))

    def mix(self, x: Tensor, state: RWKVState | None, at: Tensor | None, key_mask: Tensor | None) -> tuple[Tensor, Any]:
        past = None if state is None else state.past
        joined = after_past(x, past, 1)
        previous = joined[:, :-1]
        k = self.k_proj(_between(x, previous, self.k_mix))
        v = self.v_proj(_between(x, previous, self.v_mix))
        r = self.r_proj(_between(pick(x, at), pick(previous, at), self.r_mix))
        sums = None if state is None else WKVState(state.numerator, state.denominator, state.maximum)
        decay = self.log_decay.exp()
        if sums is not None and x.shape[1] == 1 and key_mask is None:
            out, sums = wkv_step(k[:, 0], v[:, 0], decay, self.bonus, sums)
            out = out[:, None]
        else:
            out, sums = wkv(k, v, decay, self.bonus, key_mask=key_mask, state=sums, return_state=True)
        y = self.o_proj(r.sigmoid() * pick(out, at))
        return y, RWKVState(last_rows(joined, 1, key_mask).to(x.dtype if past is None else past.dtype), *sums)

    def new_state(self, batch_size: int, *, device: torch.device | str, dtype: torch.dtype) -> RWKVState:
        past = torch.zeros(batch_size, 1, self.d_model, device=device, dtype=dtype)
        return RWKVState(past, *initial_wkv_state(batch_size, self.d_model, device=device, dtype=dtype))

    def init_weights(self, std: float, num_layers: int) -> None:
        """Keeps torch's own: in the paper's code the blanket initialisation does not reach RWKV."""


def _between(x: Tensor, previous: Tensor, mix: Tensor) -> Tensor:
    return previous + mix * (x - previous)
