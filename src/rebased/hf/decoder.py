"""One token at a time, recorded as a CUDA graph: a step then costs what the card needs, and nothing for Python."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from rebased.layers import KernelAttention
from rebased.models import LanguageModel, ModelState
from rebased.replay import Replay

__all__ = ["Decoder", "has_constant_state"]

Recorder = Callable[[Callable[[], None], torch.device], Callable[[], None]]
"""Makes of a function without arguments one that does the same to the same memory."""


class Decoder:
    """Steps of a batch, in memory that stays where it is."""

    def __init__(self, body: LanguageModel, head: nn.Linear, state: ModelState, record: Recorder = Replay) -> None:
        """``state`` gives sizes; what it holds is not changed."""
        self._tokens = torch.zeros(state.batch_size, 1, dtype=torch.int64, device=state.count.device)
        self.state: ModelState = _pytree.tree_map(torch.clone, state)
        """What the next step goes on from. Others may read it until then."""
        self._logits: Tensor | None = None
        self._owner: Callable[[], Any] = lambda: None

        def run() -> None:
            with _in_place(body):
                features, new_state = body.features(self._tokens, state=self.state)
            _overwrite(self.state, new_state)
            logits = head(features)
            if self._logits is None:
                self._logits = torch.empty_like(logits)
            self._logits.copy_(logits)

        self._run = record(run, self._tokens.device)

    def belong_to(self, cache: Any) -> None:
        """Others whose state this has been so far get one of their own, before it is overwritten."""
        owner = self._owner()
        if owner is not None and owner is not cache and owner.state is self.state:
            owner.state = _pytree.tree_map(torch.clone, self.state)
        self._owner = weakref.ref(cache)

    def step(self, tokens: Tensor, state: ModelState) -> Tensor:
        """Logits (B, 1, V) after these tokens; `state` is then the one after them."""
        if state is not self.state:
            _overwrite(self.state, state)
        self._tokens.copy_(tokens)
        self._run()
        assert self._logits is not None
        return self._logits.clone()


def has_constant_state(body: LanguageModel) -> bool:
    """Whether a step leaves the sizes of states as they are, so that it can be recorded."""
    return all(block.mixer.state_bytes(2) == block.mixer.state_bytes(1) for block in body.blocks)


@contextmanager
def _in_place(body: LanguageModel) -> Iterator[None]:
    """Kernel mixers then write the states they are given: the largest ones are not copied."""
    mixers = [module for module in body.modules() if isinstance(module, KernelAttention)]
    for mixer in mixers:
        mixer.steps_in_place = True
    try:
        yield
    finally:
        for mixer in mixers:
            mixer.steps_in_place = False


def _overwrite(old: ModelState, new: ModelState | None) -> None:
    for target, source in zip(_pytree.tree_leaves(old), _pytree.tree_leaves(new), strict=True):
        if target is not source:
            target.copy_(source)
