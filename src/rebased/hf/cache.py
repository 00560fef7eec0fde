"""What a model keeps between two calls, as Hugging Face's generation handles it."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from rebased.models import ModelState

__all__ = ["RebasedCache"]


class RebasedCache(Cache):
    """The states of all layers: of constant size for kernel layers, growing keys and values for attention.

    Only one thread at a time may use a cache. Several caches, of several threads, may share a decoder: when one of them
    makes a step there, the state of another is moved out of the decoder's memory.
    """

    def __init__(self, state: ModelState | None = None, num_seen: int = 0) -> None:
        super().__init__(layers=[])
        self.home: Any = None
        """The decoder in whose memory the state is, if one has it."""
        self._state = state
        self.num_seen = num_seen
        """Columns of the attention mask so far, padding included."""
        self.num_steps = 0
        """Single tokens so far."""
        self.refuses_replay = False
        """Whether the model was found to be one whose steps cannot be recorded."""

    @property
    def state(self) -> ModelState | None:
        """None before the first token. It never changes later: where the decoder would overwrite it, this is a copy."""
        with self._held() as state:
            return state if self.home is None else self.home.snapshot()

    @state.setter
    def state(self, value: ModelState | None) -> None:
        with self._held():
            self._state, self.home = value, None

    def move_to(self, home: Any) -> None:
        """The state is in a decoder's memory from now on; the decoder, which calls this, is locked."""
        self._state, self.home = None, home

    def move_out(self) -> None:
        """The state is in memory of its own from now on."""
        self.state = self.state

    @contextmanager
    def _held(self) -> Iterator[ModelState | None]:
        """The state itself, which no other thread moves or overwrites in here."""
        home = self.home
        with nullcontext() if home is None else home.lock:
            # It may have been moved out before the decoder was locked; only its own thread moves it in.
            yield self._state if self.home is None else self.home.state

    @property
    def batch_size(self) -> int:
        """0 before the first token."""
        with self._held() as state:
            return 0 if state is None else state.batch_size

    def __getstate__(self) -> dict[str, Any]:
        """For copies and files, which have states of their own."""
        return self.__dict__ | {"_state": self.state, "home": None}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.num_seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._choose(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._choose(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._choose(torch.arange(self.batch_size).repeat_interleave(repeats))

    def _choose(self, index: Tensor) -> None:
        with self._held() as state:
            if state is not None:
                self.state = state.reorder(index.to(state.count.device))

    def reset(self) -> None:
        self.state, self.num_seen, self.num_steps = None, 0, 0

    def crop(self, *_: Any) -> None:
        raise ValueError("a state cannot be shortened: it has no tokens to remove, only their sums")

    @property
    def nbytes(self) -> int:
        with self._held() as state:
            return 0 if state is None else state.nbytes

    @property
    def is_croppable(self) -> bool:
        return False

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        with self._held() as state:
            return state is not None

    def __len__(self) -> int:
        with self._held() as state:
            return 0 if state is None else len(state.layers)

    def __repr__(self) -> str:
        return f"RebasedCache({len(self)} layers, {self.num_seen} tokens, {self.nbytes:,} bytes)"
