"""Whether a model's next token is decoded by a recorded graph, and by which."""

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from rebased.hf.cache import RebasedCache
from rebased.hf.decoder import Decoder, Recorder, has_constant_state
from rebased.layers import Mixer
from rebased.models import LanguageModel, ModelState
from rebased.ops.triton.precision import allows_tf32
from rebased.replay import Replay, is_capturing

__all__ = ["STEPS_BEFORE_REPLAY", "Replayer"]

STEPS_BEFORE_REPLAY = 3
"""A graph is recorded once so many single tokens have come: it takes as long as some dozen steps."""


class Replayer:
    """The recorded step of one model. A copy of it, with its model or pickled, begins with none.

    A graph does what the model did when it was recorded. Whether that is what it would do now is asked when a cache
    comes for the first time, of all modules and weights; at each token, of the few settings that contexts change.
    """

    def __init__(self, record: Recorder = Replay, device: str = "cuda") -> None:
        """``device``: where to record; on others tokens are decoded the ordinary way."""
        self._record = record
        self._device = device
        self._lock = threading.Lock()
        self._decoder: Decoder | None = None
        self._recorded: _Recorded | None = None
        """What the decoder was recorded of."""
        self._is_constant: bool | None = None
        self._max_len: int | None = None

    def __reduce__(self) -> Any:
        return Replayer, (self._record, self._device)

    def can_step(self, body: LanguageModel, tokens: Tensor, cache: RebasedCache) -> bool:
        """Whether a graph may decode these tokens, provided that they are real: it has no mask.

        Nor does it check anything. So beyond the last position it may not: there the ordinary way raises the error.
        """
        if not self._is_step(tokens, cache):
            return False
        if self._is_constant is None:  # takes longer than all else that Python does for a token
            self._max_len, self._is_constant = body.max_len, has_constant_state(body)
        return self._is_constant and (self._max_len is None or cache.num_seen < self._max_len)

    def logits(self, body: LanguageModel, head: nn.Module, tokens: Tensor, cache: RebasedCache) -> Tensor | None:
        """After a token of each sequence; None where the model is found to be one that cannot be recorded."""
        with self._lock:
            decoder = self._decoder_for(body, head, cache)
            return None if decoder is None else decoder.step(tokens, cache)

    def forget(self) -> None:
        """Let go of the graph, and of the weights it reads."""
        with self._lock:
            self._drop()
            self._is_constant = None

    def _drop(self) -> None:
        if self._decoder is not None:
            self._decoder.release()
        self._decoder = self._recorded = None

    def _is_step(self, tokens: Tensor, cache: RebasedCache) -> bool:
        return (
            tokens.device.type == self._device
            and tuple(tokens.shape) == (cache.batch_size, 1)
            and cache.num_steps >= STEPS_BEFORE_REPLAY
            and not cache.refuses_replay
            and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
            and not is_capturing(tokens)
        )

    def _decoder_for(self, body: LanguageModel, head: nn.Module, cache: RebasedCache) -> Decoder | None:
        settings = _settings(body, self._device)
        is_at_home = self._decoder is not None and cache.home is self._decoder
        if is_at_home and self._recorded is not None and self._recorded.settings == settings:
            return self._decoder
        modules = [*body.modules(), *head.modules()]
        if not isinstance(head, nn.Linear) or not all(map(_is_predictable, modules)):
            cache.refuses_replay = True
            return None
        state = cache.state
        assert state is not None
        found = _Recorded(settings, modules, state)
        if self._decoder is None or self._recorded is None or not self._recorded.is_like(found):
            self._drop()  # its memory is for the next one
            self._decoder = Decoder(body, head, state, self._record)
            self._recorded = found
        return self._decoder


class _Recorded:
    """What a graph was recorded of: equal only to what would be recorded the same."""

    def __init__(self, settings: tuple[Any, ...], modules: Sequence[nn.Module], state: ModelState) -> None:
        tensors = [x for module in modules for x in (*module._parameters.values(), *module._buffers.values())]
        leaves, structure = _pytree.tree_flatten(state)
        self.settings = settings
        self._modules = modules
        # Kept, so that the graph has them as long as it is there, and no address is used again.
        self._weights = [x.detach() for x in tensors if x is not None]
        self._sizes = structure, [(x.shape, x.dtype) for x in leaves]

    def is_like(self, other: "_Recorded") -> bool:
        return self._key() == other._key()

    def _key(self) -> tuple[Any, ...]:
        places = [(x.data_ptr(), x.dtype) for x in self._weights]
        return self.settings, list(map(id, self._modules)), places, self._sizes


def _settings(body: LanguageModel, device: str) -> tuple[Any, ...]:
    """What makes the same modules compute something else."""
    return (
        body.training,
        torch.is_autocast_enabled(device),
        torch.get_autocast_dtype(device),
        allows_tf32(),
    )


def _is_predictable(module: nn.Module) -> bool:
    """Whether it does the same at every call: not so what others have put in or around, as adapters that can be off."""
    is_known = isinstance(module, Mixer) or type(module).__module__.startswith(("rebased.", "torch.nn.modules."))
    return is_known and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
