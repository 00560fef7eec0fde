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
        self.state = state
        """None before the first token."""
        self.num_seen = num_seen
        """Columns of the attention mask so far, padding included."""
        self.num_steps = 0
        """Single tokens so far."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.num_seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._choose(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._choose(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            self._choose(torch.arange(self.state.batch_size, device=self.state.count.device).repeat_interleave(repeats))

    def _choose(self, index: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.reorder(index.to(self.state.count.device))

    def reset(self) -> None:
        self.state, self.num_seen, self.num_steps = None, 0, 0

    def crop(self, *_: Any) -> None:
        raise ValueError("a state cannot be shortened: it has no tokens to remove, only their sums")

    @property
    def nbytes(self) -> int:
        return 0 if self.state is None else self.state.nbytes

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return self.state is not None

    def __len__(self) -> int:
        return 0 if self.state is None else len(self.state.layers)

    def __repr__(self) -> str:
        return f"RebasedCache({len(self)} layers, {self.num_seen} tokens, {self.nbytes:,} bytes)"
