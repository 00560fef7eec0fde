"""Sequences that grow at their end: new rows are written behind the old ones, which are not copied each time."""

import itertools
import threading
from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from rebased.replay import is_capturing

__all__ = ["extend"]

SHARE = 8
"""Whenever memory is made, one row in so many is for more to come, within bounds."""
MIN_ROOM = 64
MAX_ROOM = 1024
"""A copy once in so many tokens costs next to nothing."""
GOLDEN = (5**0.5 - 1) / 2


@dataclass
class _Room:
    buffer: Tensor
    num_used: int
    """Rows at the beginning that belong to someone."""

    def takes(self, start: int, new: Tensor) -> bool:
        """Whether ``new`` can be written there: others may have been before, or made this in inference mode."""
        fits = self.num_used == start and start + new.shape[1] <= self.buffer.shape[1]
        writable = torch.is_inference_mode_enabled() or not self.buffer.is_inference()
        return fits and writable and self.buffer.dtype == new.dtype


_ROOMS = WeakTensorKeyDictionary()
"""Of sequences with memory behind their end."""
_LOCK = threading.Lock()


def extend(rows: Shaped[Tensor, "B S ..."], new: Shaped[Tensor, "B T ..."]) -> Shaped[Tensor, "B ST ..."]:
    """``torch.cat([rows, new], dim=1)``, in the dtype of the new.

    The result may share memory with ``rows``, whose content does not change. If the same ``rows`` are extended a second
    time, that result is a copy.
    """
    S, T = rows.shape[1], new.shape[1]
    if not _may_write(new):
        return torch.cat([rows.to(new.dtype), new], dim=1)
    with _LOCK:  # rows are taken before they are written, which other threads do at the same time
        room: _Room | None = _ROOMS.get(rows)
        is_taken = room is not None and room.takes(S, new)
        if room is not None and is_taken:
            room.num_used = S + T
    if room is None or not is_taken:
        room = _Room(new.new_empty(new.shape[0], S + T + _num_spare(S + T), *new.shape[2:]), S + T)
        room.buffer[:, :S] = rows
    room.buffer[:, S : S + T] = new
    longer = room.buffer[:, : S + T]
    with _LOCK:
        _ROOMS[longer] = room
    return longer


_TURNS = itertools.count()


def _num_spare(num_rows: int) -> int:
    """Half to all of the share, spread evenly over calls.

    A model's layers thus run out of room at different tokens. If all did at one, all would be in memory twice.
    """
    most = min(max(MIN_ROOM, num_rows // SHARE), MAX_ROOM)
    return round(most * (1 + next(_TURNS) * GOLDEN % 1) / 2)


def _may_write(new: Tensor) -> bool:
    """Whether nobody is watching: what derives, maps, compiles or records wants functions without effects."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch.is_grad_enabled()  # old rows may have been saved for a gradient of something else
        or is_capturing(new)
    )
