"""What a model keeps between two calls, as Hugging Face's generation handles it."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from rebased.models import ModelState

__all__ = ["RebasedCache"]


class RebasedCache(Cache):
    """The states of all layers: of constant size for kernel layers, growing keys and values for attention."""

    def __init__(self, state: ModelState | None = None, num_seen: int = 0) -> None:
        super().__init__(layers=[])
        self.home: Any = None
        """The decoder in whose memory the state is, if one has it."""
        self._state = state
        self.num_seen = num_seen
        """Columns of the attention mask so far, padding included."""
        self.num_steps = 0
        """Single tokens so far."""
        self.is_past_padding = False
        """Whether one of them was real in all sequences: padding on the left is over then."""
        self.refuses_replay = False
        """Whether the model was found to be one whose steps cannot be recorded."""

    @property
    def state(self) -> ModelState | None:
        """None before the first token. Nobody changes what is returned: of what a decoder overwrites it is a copy."""
        return self._state if self.home is None else self.home.snapshot()

    @state.setter
    def state(self, value: ModelState | None) -> None:
        self._state, self.home = value, None

    def move_to(self, home: Any) -> None:
        """The state is in a decoder's memory from now on."""
        self._state, self.home = None, home

    @property
    def _present(self) -> ModelState | None:
        """The state itself, to be looked at."""
        return self._state if self.home is None else self.home.state

    @property
    def batch_size(self) -> int:
        """0 before the first token."""
        return 0 if self._present is None else self._present.batch_size

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
        if self._present is not None:
            self._choose(torch.arange(self.batch_size, device=self._present.count.device).repeat_interleave(repeats))

    def _choose(self, index: Tensor) -> None:
        if self._present is not None:
            self.state = self._present.reorder(index.to(self._present.count.device))

    def reset(self) -> None:
        self.state, self.num_seen, self.num_steps, self.is_past_padding = None, 0, 0, False

    def crop(self, *_: Any) -> None:
        raise ValueError("a state cannot be shortened: it has no tokens to remove, only their sums")

    @property
    def nbytes(self) -> int:
        return 0 if self._present is None else self._present.nbytes

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return self._present is not None

    def __len__(self) -> int:
        return 0 if self._present is None else len(self._present.layers)

    def __repr__(self) -> str:
        return f"RebasedCache({len(self)} layers, {self.num_seen} tokens, {self.nbytes:,} bytes)"
