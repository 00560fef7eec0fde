"""H3: a shift and a diagonal state space model between gates (Fu, Dao et al. 2023)."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rebased.checks import check_integer
from rebased.layers.checks import check_divides
from rebased.layers.diagonal_ssm import DiagonalSSM
from rebased.layers.mixer import Mixer
from rebased.layers.rows import last_rows, pick
from rebased.layers.states import MixerState
from rebased.ops.dtypes import sums_dtype
from rebased.ops.long_conv import long_conv

__all__ = ["H3", "H3State"]


@dataclass(frozen=True, eq=False)
class H3State(MixerState):
    """The last keys, which are what the shift model remembers, and the diagonal one's states."""

    past: Float[Tensor, "B K1 M"]
    hidden: Float[Tensor, "B DD H N 2"]


class H3(Mixer):
    """``q ⊙ diag(shift(k) ⊗ v)``, projected: the outer products are within heads of ``head_dim`` channels.

    shift is a learned filter of ``state_dim`` taps in each channel and a skip; diag is a `DiagonalSSM` (S4D) with a
    state of ``state_dim`` numbers, one for each head and shared by its head_dim² products. With head_dim=1 all of it
    is element-wise. A model's `init_weights` reaches the projections only.
    """

    state_type = H3State

    def __init__(self, d_model: int, *, state_dim: int = 64, head_dim: int = 1) -> None:
        super().__init__(d_model)
        check_integer("state_dim", state_dim)
        check_integer("head_dim", head_dim)
        if state_dim % 2:
            raise ValueError(f"state_dim={state_dim} must be even: the diagonal model has half as many complex numbers")
        check_divides("head_dim", head_dim, "d_model", d_model)
        self.state_dim, self.head_dim, self.num_heads = state_dim, head_dim, d_model // head_dim
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.shift = nn.Parameter(torch.empty(state_dim, d_model))
        self.shift_skip = nn.Parameter(torch.empty(d_model))
        self.ssm = DiagonalSSM(self.num_heads, state_dim)
        self.out_proj = nn.Linear(d_model, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.state_dim**-0.5
        nn.init.uniform_(self.shift, -bound, bound)
        nn.init.normal_(self.shift_skip)

    def mix(self, x: Tensor, state: H3State | None, at: Tensor | None, key_mask: Tensor | None) -> tuple[Tensor, Any]:
        B, D = x.shape[0], self.head_dim
        q, k, v = self.q_proj(pick(x, at)), self.k_proj(x), self.v_proj(x)
        keys = k if state is None else torch.cat([state.past.to(k.dtype), k], dim=1)
        shifted = long_conv(keys, self.shift, x.shape[1])
        shifted = shifted + self.shift_skip * k.to(shifted.dtype)
        products = self._by_head(shifted)[:, :, None] * self._by_head(v.to(shifted.dtype))[:, None]  # (B, D, D, T, H)
        row_mask = None if key_mask is None else key_mask.repeat_interleave(D * D, dim=0)
        hidden = None if state is None else state.hidden.flatten(0, 1)
        mixed, hidden = self.ssm(products.flatten(0, 2), hidden, row_mask)
        mixed = pick(mixed.unflatten(0, (B, D, D)).permute(0, 3, 4, 1, 2), at)  # (B, P, H, D, D)
        out = (q.unflatten(-1, (-1, D))[..., None] * mixed).sum(dim=-2)  # (B, P, H, D)
        y = self.out_proj(out.flatten(2).to(q.dtype))
        if state is None:
            return y, None
        past = last_rows(keys, self.state_dim - 1, key_mask).to(state.past.dtype)
        return y, H3State(past, hidden.unflatten(0, (B, D * D)))

    def _by_head(self, x: Float[Tensor, "B T M"]) -> Float[Tensor, "B D T H"]:
        return x.unflatten(-1, (-1, self.head_dim)).permute(0, 3, 1, 2)

    def new_state(self, batch_size: int, *, device: torch.device | str, dtype: torch.dtype) -> H3State:
        past = torch.zeros(batch_size, self.state_dim - 1, self.d_model, device=device, dtype=dtype)
        shape = (batch_size, self.head_dim**2, self.num_heads, self.state_dim // 2, 2)
        return H3State(past, torch.zeros(shape, device=device, dtype=sums_dtype(dtype)))
