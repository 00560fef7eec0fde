"""One token at a time, recorded as a CUDA graph: a step then costs what the card needs, and nothing for Python."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from rebased.hf.cache import RebasedCache
from rebased.layers.kernel_attention import stepping_in_place
from rebased.models import LanguageModel, ModelState
from rebased.replay import Replay

__all__ = ["Decoder", "Recorder", "has_constant_state"]

Recorder = Callable[[Callable[[], None], torch.device], Callable[[], None]]
"""Makes of a function without arguments one that does the same to the same memory."""


class Decoder:
    """Steps of a batch in memory that stays where it is, one cache's state at a time; a lock keeps threads apart."""

    def __init__(self, body: LanguageModel, head: nn.Linear, state: ModelState, record: Recorder = Replay) -> None:
        """``state`` gives sizes; what it holds is not changed, and not used."""
        self.lock = threading.RLock()
        """Held by whoever reads the state or replaces it. Who holds it never waits for another decoder's."""
        device = state.count.device
        # What is made in inference mode could not be written outside of it, where the next generation may be.
        with torch.inference_mode(False), torch.no_grad():
            self._tokens = torch.zeros(state.batch_size, 1, dtype=torch.int64, device=device)
            # Of a sequence's first token: before a step is recorded it is made some times, and there must be positions.
            self.state: ModelState = _pytree.tree_map(torch.zeros_like, state)
            """What the next step goes on from, and overwrites."""
            self._logits: Tensor | None = None
            self._run = record(lambda: self._step(body, head), device)
        self._owner: Callable[[], RebasedCache | None] = lambda: None

    def _step(self, body: LanguageModel, head: nn.Linear) -> None:
        kind = self._tokens.device.type
        # Weights that autocast has cast once for all would be gone, or old, when the graph is replayed.
        with torch.autocast(
            kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind), cache_enabled=False
        ):
            with stepping_in_place():
                features, new_state = body.features(self._tokens, state=self.state)
            _overwrite(self.state, new_state)
            logits = head(features)
        if self._logits is None:
            self._logits = torch.empty_like(logits)
        self._logits.copy_(logits)

    def step(self, tokens: Tensor, cache: RebasedCache) -> Tensor:
        """Logits (B, 1, V) after these tokens of the cache's sequences, which stay here until others come."""
        if cache.home is not self:
            cache.move_out()  # of another decoder, whose lock this takes
        with self.lock:
            if cache.home is not self:
                self.release()
                _overwrite(self.state, cache.state)
                cache.move_to(self)
                self._owner = weakref.ref(cache)
            self._tokens.copy_(tokens)
            self._run()
            assert self._logits is not None
            return self._logits.clone()

    def release(self) -> None:
        """Let the cache whose state this has been have one of its own."""
        with self.lock:
            owner = self._owner()
            if owner is not None and owner.home is self:
                owner.move_out()

    def snapshot(self) -> ModelState:
        with self.lock:
            copied: ModelState = _pytree.tree_map(torch.clone, self.state)
            return copied


def has_constant_state(body: LanguageModel) -> bool:
    """Whether a step leaves the sizes of states as they are, so that it can be recorded."""
    return all(block.mixer.state_bytes(2) == block.mixer.state_bytes(1) for block in body.blocks)


def _overwrite(old: ModelState, new: Any) -> None:
    for target, source in zip(_pytree.tree_leaves(old), _pytree.tree_leaves(new), strict=True):
        if target is not source:
            target.copy_(source)
