"""Mamba's selective state space mixer, S6 (Gu and Dao 2023)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from rebased.checks import check_choice, check_integer
from rebased.layers.causal_conv import CausalConv
from rebased.layers.mixer import Mixer
from rebased.layers.rows import after_past, last_rows, pick
from rebased.layers.states import MixerState
from rebased.ops.conv_silu import conv_silu
from rebased.ops.dtypes import compute_dtype, sums_dtype
from rebased.ops.selective_scan import selective_scan, selective_scan_step

__all__ = ["MAMBA_INITS", "Mamba", "MambaState"]

MAMBA_INITS = ("own", "published")
MIN_DT, MAX_DT = 1e-3, 1e-1


@dataclass(frozen=True, eq=False)
class MambaState(MixerState):
    """The convolution's last inputs, and h."""

    past: Float[Tensor, "B K1 W"]
    hidden: Float[Tensor, "B W N"]


class Mamba(Mixer):
    """Projection to ``expand`` · d_model channels and as many gates, convolution, selective scan, gate, projection.

    ``init`` matters inside a model: "own" is Mamba's, with steps dt spread over [0.001, 0.1]; "published" lets the
    model overwrite it as the paper's code did, after which dt is 0.69 in every channel.
    """

    state_type = MambaState

    def __init__(
        self,
        d_model: int,
        *,
        state_dim: int = 16,
        num_taps: int = 4,
        expand: int = 2,
        dt_rank: int | None = None,
        init: str = "own",
    ) -> None:
        super().__init__(d_model)
        dt_rank = math.ceil(d_model / 16) if dt_rank is None else dt_rank
        for name, size in {"state_dim": state_dim, "num_taps": num_taps, "expand": expand, "dt_rank": dt_rank}.items():
            check_integer(name, size)
        check_choice("init", init, MAMBA_INITS)
        self.init = init
        self.width, self.state_dim, self.dt_rank = expand * d_model, state_dim, dt_rank
        self.in_proj = nn.Linear(d_model, 2 * self.width, bias=False)
        self.conv = CausalConv(self.width, num_taps)
        self.x_proj = nn.Linear(self.width, dt_rank + 2 * state_dim, bias=False)
        self.dt_proj = nn.Linear(dt_rank, self.width)
        self.A_log = nn.Parameter(torch.empty(self.width, state_dim))
        self.skip = nn.Parameter(torch.empty(self.width))
        self.out_proj = nn.Linear(self.width, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A = -1 … -N; dt log-uniform in [MIN_DT, MAX_DT] where its input is zero: softplus of the bias is that."""
        bound = self.dt_rank**-0.5
        nn.init.uniform_(self.dt_proj.weight, -bound, bound)
        nn.init.ones_(self.skip)
        dt = torch.empty_like(self.skip).uniform_(math.log(MIN_DT), math.log(MAX_DT)).exp()
        with torch.no_grad():
            self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))
            self.A_log.copy_(torch.arange(1, self.state_dim + 1).log())

    def init_weights(self, std: float, num_layers: int) -> None:
        """Its own initialisation, in which only the output's scale depends on depth; or what the model does to all."""
        if self.init == "published":
            super().init_weights(std, num_layers)
        else:
            bound = (self.width * num_layers) ** -0.5
            nn.init.uniform_(self.out_proj.weight, -bound, bound)

    def mix(
        self, x: Tensor, state: MambaState | None, at: Tensor | None, key_mask: Tensor | None
    ) -> tuple[Tensor, Any]:
        inputs, gates = self.in_proj(x).chunk(2, dim=-1)
        u, past = self._convolve(inputs, state, key_mask)
        dt, b, c = self.x_proj(u).split([self.dt_rank, self.state_dim, self.state_dim], dim=-1)
        dt = functional.softplus(self.dt_proj(dt))
        if key_mask is not None:
            dt = dt.where(key_mask[..., None], 0.0)  # such a step leaves the state as it is
        A = -self.A_log.to(compute_dtype(self.A_log)).exp()
        if state is not None and x.shape[1] == 1:
            y, hidden = selective_scan_step(u[:, 0], dt[:, 0], A, b[:, 0], c[:, 0], state.hidden)
            y = y[:, None]
        else:
            first = None if state is None else state.hidden
            y, hidden = selective_scan(u, dt, A, b, c, state=first, return_state=True)
        y = pick(y + self.skip * u, at) * functional.silu(pick(gates, at))
        return self.out_proj(y), MambaState(past, hidden)

    def _convolve(self, inputs: Tensor, state: MambaState | None, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """With SiLU, in the inputs' dtype also under autocast; and the last inputs, for the next call."""
        num_past = self.conv.num_taps - 1
        joined = after_past(inputs, None if state is None else state.past, num_past)
        past = last_rows(joined, num_past, key_mask)
        if state is None:
            return conv_silu(inputs, self.conv.weight, self.conv.bias), past
        u = conv_silu(joined, self.conv.weight, self.conv.bias)[:, num_past:]
        return u, past.to(state.past.dtype)

    def new_state(self, batch_size: int, *, device: torch.device | str, dtype: torch.dtype) -> MambaState:
        past = torch.zeros(batch_size, self.conv.num_taps - 1, self.width, device=device, dtype=dtype)
        hidden = torch.zeros(batch_size, self.width, self.state_dim, device=device, dtype=sums_dtype(dtype))
        return MambaState(past, hidden)
