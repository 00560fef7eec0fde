"""Checks of what mixers are built and called with."""

import inspect
from collections.abc import Callable
from typing import Any

from jaxtyping import Int
from torch import Tensor

from rebased.checks import check_number
from rebased.layers.states import State
from rebased.ops.checks import check_cu_seqlens, check_key_mask, check_positions, checked_positions
from rebased.ops.positions import count_sequences

__all__ = [
    "check_divides",
    "check_dropout",
    "check_options",
    "checked_arguments",
    "divisors",
]


def check_dropout(name: str, value: float) -> None:
    check_number(name, value)
    if not 0 <= value < 1:
        raise ValueError(f"{name}={value} must be at least 0 and less than 1")


def check_divides(name: str, value: int, whole_name: str, whole: int) -> None:
    if whole % value:
        fitting = ", ".join(map(str, divisors(whole)))
        raise ValueError(f"{name}={value} does not divide {whole_name}={whole}; it may be {fitting}")


def divisors(n: int) -> list[int]:
    return [i for i in range(1, n + 1) if n % i == 0]


def check_options(name: str, options: dict[str, Any], owner: str, make: Callable[..., Any]) -> None:
    """That ``make`` takes these by name, after its first argument; what they may be it says itself."""
    if not isinstance(options, dict):
        raise TypeError(f"{name} is {options!r}; it must be a dictionary of arguments")
    parameters = list(inspect.signature(make).parameters.values())[1:]
    if any(x.kind is x.VAR_KEYWORD for x in parameters):
        return
    needed = {x.name for x in parameters if x.default is x.empty}
    if not needed <= set(options) <= {x.name for x in parameters}:
        known = ", ".join(x.name if x.name in needed else f"{x.name}={x.default!r}" for x in parameters)
        raise ValueError(f"{name}={options!r} do not fit {owner}, which takes ({known})")


def checked_arguments(
    x: Tensor,
    state: State | None,
    state_type: type[State],
    at: Tensor | None,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
) -> Int[Tensor, "B P"] | None:
    """``at``, after a check of all that a layer or model is called with beside its input x (B, T, …)."""
    B, T = x.shape[:2]
    if cu_seqlens is not None:
        check_cu_seqlens(cu_seqlens, B, x.device)
    if state is not None:
        _check_state(state, state_type, count_sequences(x, cu_seqlens))
    if key_mask is not None:
        check_key_mask(key_mask, (B, T), x.device)
    if at is None:
        return None
    check_positions(at, B, x.device)
    return checked_positions(at, T, "at")


def _check_state(state: State, kind: type[State], batch_size: int) -> None:
    if not isinstance(state, kind):
        raise TypeError(f"state is a {type(state).__name__}; it must be a {kind.__name__}, as init_state makes it")
    if state.batch_size != batch_size:
        raise ValueError(
            f"state has {state.batch_size} sequences; it must have {batch_size}, as many as there are here"
        )
