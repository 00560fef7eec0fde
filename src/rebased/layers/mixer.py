"""The one interface of all sequence mixers."""

import functools
from abc import ABC, abstractmethod
from inspect import signature
from itertools import chain
from types import FunctionType
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rebased.checks import check_integer
from rebased.layers.checks import checked_arguments
from rebased.layers.rows import pick
from rebased.layers.states import MixerState, State
from rebased.ops.checks import checked_borders
from rebased.ops.packing import group_sequences

__all__ = ["Mixer"]


def _copied(function: Any) -> Any:
    """The same function, with code that is another object."""
    copy = FunctionType(function.__code__.replace(), function.__globals__, closure=function.__closure__)
    copy.__defaults__, copy.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return functools.wraps(function)(copy)


class Mixer(nn.Module, ABC):
    """Mixes information along a sequence, causally: (B, T, d_model) in, the same out.

    A subclass computes in `mix`, makes the state of a new stream in `new_state`, and says in `state_bytes` how much
    memory a state takes. A masked token, wherever it stands, changes no other token and no state, and takes no place
    in time.
    """

    state_type: type[State] = MixerState
    """What `init_state` gives."""
    takes_gaps = False
    """Whether `mix` takes masked tokens anywhere in a row; else it is given rows in which real ones come first."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """With a `forward` of its own: torch.compile limits how often one is compiled, of whatever classes."""
        super().__init_subclass__(**kwargs)
        if cls.forward.__code__ == Mixer.forward.__code__:
            cls.forward = _copied(Mixer.forward)  # type: ignore[method-assign]

    def __init__(self, d_model: int) -> None:
        super().__init__()
        check_integer("d_model", d_model)
        self.d_model = d_model

    def extra_repr(self) -> str:
        """The constructor's arguments that are numbers or names, with the values of the attributes of these names."""
        found = {name: getattr(self, name, None) for name in signature(type(self)).parameters}
        return ", ".join(f"{name}={value!r}" for name, value in found.items() if isinstance(value, int | float | str))

    @property
    def max_len(self) -> int | None:
        """How many tokens a sequence may have, those of its state included; None where any number will do."""
        return None

    def forward(
        self,
        x: Float[Tensor, "B T M"],
        *,
        state: Any = None,
        at: Int[Tensor, "B P"] | None = None,
        key_mask: Bool[Tensor, "B T"] | None = None,
        cu_seqlens: Int[Tensor, " N1"] | None = None,
    ) -> Any:
        """Y (B, T, M). Given a ``state``, from `init_state` or an earlier call, the result is (y, state).

        ``at``: outputs at those positions only, (B, P, M). ``key_mask``: True where a token is real; outputs at other
        tokens mean nothing. ``cu_seqlens`` (N+1), with B = 1: N sequences in a row, which do not see each other; the
        state's batch is then N. ValueError for arguments that do not fit each other.
        """
        if x.ndim != 3 or x.shape[2] != self.d_model:
            raise ValueError(f"x has shape {tuple(x.shape)}; it must be (B, T, {self.d_model})")
        if not x.is_floating_point():
            raise ValueError(f"x is {x.dtype}; it must be of floating point numbers")
        at = checked_arguments(x, state, self.state_type, at, key_mask, cu_seqlens)
        if key_mask is not None:
            x = x.where(key_mask[..., None], 0.0)  # weights of zero would not hide NaN
        if cu_seqlens is None:
            y, new_state = self._mix_masked(x, state, at, key_mask)
        else:
            y, new_state = self.mix_packed(x, state, at, key_mask, cu_seqlens)
        expected = (x.shape[0], x.shape[1] if at is None else at.shape[1], self.d_model)
        if y.shape != expected:
            hint = "" if at is None else "; outputs are wanted at `at` only"
            raise RuntimeError(f"{type(self).__name__}.mix gave {tuple(y.shape)}, not {expected}{hint}")
        return y if state is None else (y, new_state)

    @abstractmethod
    def mix(
        self, x: Float[Tensor, "B T M"], state: Any, at: Int[Tensor, "B P"] | None, key_mask: Bool[Tensor, "B T"] | None
    ) -> tuple[Tensor, Any]:
        """Outputs, only those ``at`` some positions if given, and the state after x. Arguments have been checked.

        Masked tokens are zero. If ``state`` is None, the caller ignores the state that is returned, whatever it is.
        """

    def _mix_masked(self, x: Tensor, state: Any, at: Tensor | None, key_mask: Tensor | None) -> tuple[Tensor, Any]:
        """`mix` of rows whose real tokens have been moved to the front; outputs are moved back to their places."""
        if key_mask is None or self.takes_gaps:
            return self._checked_mix(x, state, at, key_mask)
        order = (~key_mask).to(torch.int8).argsort(dim=1, stable=True)
        places = order.argsort(dim=1)
        is_front = torch.arange(x.shape[1], device=x.device) < key_mask.sum(dim=1, keepdim=True)
        return self._checked_mix(pick(x, order), state, pick(places, at), is_front)

    def _checked_mix(self, x: Tensor, state: Any, at: Tensor | None, key_mask: Tensor | None) -> tuple[Tensor, Any]:
        mixed = self.mix(x, state, at, key_mask)
        if not isinstance(mixed, tuple) or len(mixed) != 2:
            given = f"a {type(mixed).__name__}"
            raise RuntimeError(f"{type(self).__name__}.mix gave {given}, not a pair: outputs and a state")
        return mixed

    def mix_packed(
        self,
        x: Float[Tensor, "1 T M"],
        state: Any,
        at: Int[Tensor, "1 P"] | None,
        key_mask: Bool[Tensor, "1 T"] | None,
        cu_seqlens: Int[Tensor, " N1"],
    ) -> tuple[Tensor, Any]:
        """Sequences of about equal length as one padded batch each."""
        cu_seqlens = checked_borders(cu_seqlens, x.shape[1])
        y = None
        order, states = [], []
        for group in group_sequences(cu_seqlens, None if at is None else at[0]):
            part = x[0, group.keys].where(group.is_key[..., None], 0.0)
            own = None if state is None else state.reorder(group.sequences)
            if key_mask is None:
                mixed, new_state = self._checked_mix(part, own, group.at, group.is_key)
            else:
                mask = group.is_key & key_mask[0, group.keys]
                mixed, new_state = self._mix_masked(part, own, group.at, mask)
            if y is None:
                y = mixed.new_zeros(x.shape[1] if at is None else at.shape[1], self.d_model)
            y = y.index_put((group.queries[group.is_query],), mixed[group.is_query])
            order.append(group.sequences)
            states.append(new_state)
        y = x[:, :0] if y is None else y[None]
        if state is None:
            return y, None
        empty = (cu_seqlens.diff() == 0).nonzero()[:, 0]
        places = torch.cat([*order, empty]).argsort()
        return y, type(state).join([*states, state.reorder(empty)]).reorder(places)

    def init_state(
        self, batch_size: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """The state before the first token; ``device`` and ``dtype``, of the inputs to come, are the weights' own."""
        weight = next(chain(self.parameters(), self.buffers()), torch.empty(0))
        return self.new_state(batch_size, device=device or weight.device, dtype=dtype or weight.dtype)

    @abstractmethod
    def new_state(self, batch_size: int, *, device: torch.device | str, dtype: torch.dtype) -> State:
        """What `init_state` gives."""

    def state_bytes(self, num_tokens: int, *, dtype: torch.dtype = torch.float32) -> int:
        """Bytes of the state of one sequence after so many tokens; constant unless the mixer overrides this."""
        return self.init_state(1, device="meta", dtype=dtype).nbytes

    def init_weights(self, std: float, num_layers: int) -> None:
        """As part of a model of ``num_layers``: Linear weights N(0, std²), narrower for out_proj, biases 0.

        The paper's models do this to all that they contain; a mixer that keeps its own initialisation overrides it.
        """
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                is_output = name.rpartition(".")[2] == "out_proj"
                nn.init.normal_(module.weight, std=std / (2 * num_layers) ** 0.5 if is_output else std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
