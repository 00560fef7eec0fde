"""Sums over the chunks of a block: the state before each chunk, and the way back.

A block's chunks come as X = B · num_chunks, (b, chunk) by chunk.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def scan(
    state: Float[Tensor, "B Hk E D1"] | None, increments: Float[Tensor, "X Hk E D1"], num_chunks: int
) -> tuple[Float[Tensor, "X Hk E D1"] | None, Float[Tensor, "B Hk E D1"]]:
    """The state before each chunk, and after the last.

    Before the very first chunk there is none: ``None`` where that is the block's only chunk, zero among others.
    """
    if num_chunks == 1:
        return state, increments if state is None else state + increments
    sums = increments.unflatten(0, (-1, num_chunks)).cumsum(dim=1)
    first = torch.zeros_like(sums[:, :1])
    if state is not None:
        first = state[:, None]
        sums = sums + first
    return torch.cat([first, sums[:, :-1]], dim=1).flatten(0, 1), sums[:, -1]


def scan_backward(
    dstate: Float[Tensor, "B Hk E D1"] | None, dprefix: Float[Tensor, "X Hk E D1"] | None, num_chunks: int
) -> tuple[Float[Tensor, "X Hk E D1"] | None, Float[Tensor, "B Hk E D1"] | None]:
    """From the gradients of `scan`'s two results, those of the increments and of the first state."""
    if dprefix is None:
        return None if dstate is None else dstate.repeat_interleave(num_chunks, dim=0), dstate
    if num_chunks == 1:
        return dstate, dprefix if dstate is None else dstate + dprefix
    suffix = dprefix.unflatten(0, (-1, num_chunks)).flip(1).cumsum(dim=1).flip(1)
    last = torch.zeros_like(suffix[:, :1])
    if dstate is not None:
        last = dstate[:, None]
        suffix = suffix + last
    return torch.cat([suffix[:, 1:], last], dim=1).flatten(0, 1), suffix[:, 0]
