"""First-order recurrences along time as associative scans, in place and without a loop over time steps.

Neighbours are joined into pairs, pairs into fours and so on; what lies in between is then filled in, from coarse to
fine. That is three operations for each time step, in 2·log2(T) rounds. Nothing is divided by products of decays: these
may vanish.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def linear_recurrence_(
    decay: Tensor, inputs: Tensor, initial: Tensor | None = None, *, reverse: bool = False
) -> Tensor:
    """``h_t = decay_t · h_{t-1} + inputs_t`` along axis 1, written into ``inputs``, which are returned.

    ``initial`` is the h before the first step, shaped as one step of ``inputs``; without it that is zero. ``reverse``
    runs from the last step to the first: ``h_t = decay_t · h_{t+1} + inputs_t``. ``decay`` broadcasts against
    ``inputs`` on other axes than time, and its content is lost.

    At the end of a sequence steps of decay 1 and input 0 change no bit of the last h.
    """

    def join(late: Tensor, decay: Tensor, early: Tensor) -> None:
        late.addcmul_(decay, early)

    return _scan(decay, inputs, initial, join, Tensor.mul_, reverse)


def maximum_recurrence_(decrease: Tensor, inputs: Tensor, initial: Tensor | None = None) -> Tensor:
    """``m_t = max(m_{t-1} - decrease_t, inputs_t)``; all else is as in `linear_recurrence_`."""

    def join(late: Tensor, decrease: Tensor, early: Tensor) -> None:
        torch.maximum(late, early - decrease, out=late)

    return _scan(decrease, inputs, initial, join, Tensor.add_, False)


def _scan(
    change: Tensor,
    inputs: Tensor,
    initial: Tensor | None,
    join: Callable[[Tensor, Tensor, Tensor], object],
    join_changes: Callable[[Tensor, Tensor], object],
    reverse: bool,
) -> Tensor:
    """``change`` is what steps do to the result before them.

    ``join(late, change, early)`` makes the result of two adjacent stretches of that of the late one,
    ``join_changes(late, early)`` does so with their changes.
    """
    length = inputs.shape[1]
    if length == 0:
        return inputs

    def every(first: int, step: int, count: int) -> slice:
        """Positions first, first + step, …, counted from where the recurrence begins."""
        start = length - 1 - first - (count - 1) * step if reverse else first
        return slice(start, start + (count - 1) * step + 1, step)

    if initial is not None:
        begin = every(0, 1, 1)
        join(inputs[:, begin], change[:, begin], initial[:, None])
    size = 1
    while 2 * size <= length:
        early, late = (every(first, 2 * size, length // (2 * size)) for first in (size - 1, 2 * size - 1))
        join(inputs[:, late], change[:, late], inputs[:, early])
        join_changes(change[:, late], change[:, early])
        size *= 2
    end = _end(change, inputs, join, join_changes, every) if size < length else None
    while size > 1:
        size //= 2
        count = (length - size) // (2 * size)
        if count > 0:
            early, late = (every(first, 2 * size, count) for first in (2 * size - 1, 3 * size - 1))
            join(inputs[:, late], change[:, late], inputs[:, early])
    if end is not None:
        inputs[:, every(length - 1, 1, 1)] = end
    return inputs


def _end(
    change: Tensor,
    inputs: Tensor,
    join: Callable[[Tensor, Tensor, Tensor], object],
    join_changes: Callable[[Tensor, Tensor], object],
    every: Callable[[int, int, int], slice],
) -> Tensor:
    """The last result, from stretches whose lengths are powers of two, joined from the last one on.

    That is the order in which they would be joined if steps that change nothing made the length a power of two.
    """
    rest = inputs.shape[1]
    at = every(rest - 1, 1, 1)
    result, total = inputs[:, at].clone(), change[:, at].clone()
    while rest := rest & (rest - 1):  # without its last stretch
        at = every(rest - 1, 1, 1)
        join(result, total, inputs[:, at])
        join_changes(total, change[:, at])
    return result
