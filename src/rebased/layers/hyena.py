"""Hyena: long convolutions and gates by turns (Poli et al. 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rebased.checks import check_integer, check_positive_number
from rebased.layers.causal_conv import CausalConv
from rebased.layers.checks import check_dropout
from rebased.layers.dropout import Dropout
from rebased.layers.implicit_filter import ImplicitFilter
from rebased.layers.mixer import Mixer
from rebased.layers.rows import last_rows, pick
from rebased.layers.states import MixerState
from rebased.ops.checks import check_switches, checked_positions
from rebased.ops.dtypes import compute_dtype
from rebased.ops.long_conv import long_conv

__all__ = ["Hyena", "HyenaState"]


@dataclass(frozen=True, eq=False)
class HyenaState(MixerState):
    """The short convolution's last inputs, all of the long ones' (N of them), and the number of tokens.

    Rows of fewer tokens than others have zeros in front of theirs.
    """

    past: Float[Tensor, "B K1 W"]
    inputs: Float[Tensor, "B S N M"]
    count: Int[Tensor, " B"]

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        longest = max(state.inputs.shape[1] for state in states)
        return super().join([state._padded(longest) for state in states])

    def _padded(self, length: int) -> Self:
        inputs = functional.pad(self.inputs, (0, 0, 0, 0, length - self.inputs.shape[1], 0))
        return type(self)(past=self.past, inputs=inputs, count=self.count)


class Hyena(Mixer):
    """``z ← x^n ⊙ (h^n * z + d^n ⊙ z)`` for n = 1 .. ``order``, from z = v (definition 3.1), and a projection.

    v and the gates x^n are linear in the input, each channel convolved with ``num_taps`` taps; the filters h^n are
    those of `ImplicitFilter`, ``seq_len`` long, and d^n skips them. A longer sequence, earlier pieces included, is a
    ValueError.

    Filters are by default as in the paper's language models: networks of width 64 and depth 4 (two inner layers),
    sines of frequency 14, 16 complex exponentials. With ``first_filter=False`` there is no h^1, and the short
    convolution of v stands for it: so the paper's experiments and its authors' code count, whose order 2 has one long
    convolution. ``dropout`` acts on what a long convolution is given. A model's `init_weights` reaches the projections
    only.
    """

    state_type = HyenaState

    def __init__(
        self,
        d_model: int,
        *,
        seq_len: int,
        order: int = 2,
        first_filter: bool = True,
        num_taps: int = 3,
        filter_dim: int = 64,
        num_frequencies: int = 16,
        num_inner_layers: int = 2,
        sine_frequency: float = 14.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(d_model)
        sizes = {"seq_len": seq_len, "order": order, "num_taps": num_taps, "filter_dim": filter_dim}
        for name, size in (sizes | {"num_frequencies": num_frequencies, "num_inner_layers": num_inner_layers}).items():
            check_integer(name, size)
        check_switches(first_filter=first_filter)
        if order == 1 and not first_filter:
            raise ValueError("first_filter=False leaves order=1 no filter at all; order must then be 2 or more")
        check_positive_number("sine_frequency", sine_frequency)
        check_dropout("dropout", dropout)
        self.seq_len, self.order = seq_len, order
        self.num_filters = order if first_filter else order - 1
        self.in_proj = nn.Linear(d_model, (order + 1) * d_model)
        self.conv = CausalConv((order + 1) * d_model, num_taps)
        self.filter = ImplicitFilter(
            self.num_filters,
            d_model,
            seq_len=seq_len,
            hidden_dim=filter_dim,
            num_frequencies=num_frequencies,
            num_inner_layers=num_inner_layers,
            sine_frequency=sine_frequency,
        )
        self.skip = nn.Parameter(torch.empty(self.num_filters, d_model))
        self.dropouts = nn.ModuleList(Dropout(dropout) for _ in range(self.num_filters))
        self.out_proj = nn.Linear(d_model, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.skip)

    def mix(
        self, x: Tensor, state: HyenaState | None, at: Tensor | None, key_mask: Tensor | None
    ) -> tuple[Tensor, Any]:
        T = x.shape[1]
        S = T if state is None else T + state.inputs.shape[1]
        count, key_mask = self._count(x, state, key_mask, S)
        if key_mask is not None:
            x = x.where(key_mask[..., None], 0.0)  # what is used cannot be dropped by a compiler, nor its check
        u, past = self.conv(self.in_proj(x), None if state is None else state.past, None, key_mask)
        z, *gates = u.split(self.d_model, dim=-1)
        filters = self.filter(min(S, self.seq_len), compute_dtype(x))  # (L, N, M)
        joined: list[Tensor] = []
        for step, gate in enumerate(gates):
            index = step - (self.order - self.num_filters)
            if index >= 0:
                z = self.dropouts[index](z)
                joined.append(z if state is None else torch.cat([state.inputs[:, :, index].to(z.dtype), z], dim=1))
                z = (long_conv(joined[-1], filters[:, index], T) + self.skip[index] * z).to(z.dtype)
            if step == self.order - 1:
                z, gate = pick(z, at), pick(gate, at)
            z = gate * z
        y = self.out_proj(z)
        if state is None:
            return y, None
        inputs = torch.stack(joined, dim=2)  # (B, S, N, M)
        if key_mask is not None:
            inputs = functional.pad(inputs, (0, 0, 0, 0, T, 0))
        inputs = last_rows(inputs, min(S, self.seq_len), key_mask)
        return y, HyenaState(past.to(state.past.dtype), inputs.to(state.inputs.dtype), count)

    def _count(
        self, x: Tensor, state: HyenaState | None, key_mask: Tensor | None, num_places: int
    ) -> tuple[Int[Tensor, " B"], Tensor | None]:
        """Tokens so far, and the mask; ValueError for too many, of which the number of places may tell nothing.

        Where it does not, the mask comes from checked numbers.
        """
        T = x.shape[1]
        if num_places > self.seq_len and state is None and key_mask is None:
            raise ValueError(f"x has {T} tokens; seq_len={self.seq_len} is the most that this Hyena takes")
        before = x.new_zeros(x.shape[0], dtype=torch.int64) if state is None else state.count
        count = before + (T if key_mask is None else key_mask.sum(dim=1))
        if num_places > self.seq_len:
            last = checked_positions((count - 1).clamp(min=0), self.seq_len, "the last token, state included,")
            count = torch.minimum(count, last + 1)
            key_mask = torch.arange(T, device=x.device) < (count - before)[:, None]
        return count, key_mask

    def new_state(self, batch_size: int, *, device: torch.device | str, dtype: torch.dtype) -> HyenaState:
        past = torch.zeros(
            batch_size, self.conv.num_taps - 1, (self.order + 1) * self.d_model, device=device, dtype=dtype
        )
        inputs = torch.zeros(batch_size, 0, self.num_filters, self.d_model, device=device, dtype=dtype)
        return HyenaState(past, inputs, torch.zeros(batch_size, device=device, dtype=torch.int64))

    def state_bytes(self, num_tokens: int, *, dtype: torch.dtype = torch.float32) -> int:
        """It grows with every token, up to seq_len."""
        kept = min(num_tokens, self.seq_len) * self.num_filters * self.d_model
        return super().state_bytes(num_tokens, dtype=dtype) + kept * dtype.itemsize
