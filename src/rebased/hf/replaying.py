"""Whether a model's next token is decoded by a recorded graph, and by which."""

import threading
from typing import Any

import torch
from torch import Tensor, nn

from rebased.hf.cache import RebasedCache
from rebased.hf.decoder import Decoder, Recorder, has_constant_state
from rebased.layers import Mixer
from rebased.models import LanguageModel
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
        self._recorded: Any = None
        """What the decoder was recorded of, kept so that no address is used again."""
        self._is_constant: bool | None = None

    def __reduce__(self) -> Any:
        return Replayer, (self._record, self._device)

    def can_step(self, body: LanguageModel, tokens: Tensor, cache: RebasedCache) -> bool:
        """Whether these are tokens for a graph, if they are real: one has no mask.

        And it checks nothing: beyond the position table the ordinary way does.
        """
        if not self._is_step(tokens, cache):
            return False
        if body.position_embedding is not None and cache.num_seen >= body.position_embedding.num_embeddings:
            return False
        if self._is_constant is None:  # takes longer than all else that Python does for a token
            self._is_constant = has_constant_state(body)
        return self._is_constant

    def logits(self, body: LanguageModel, head: nn.Module, tokens: Tensor, cache: RebasedCache) -> Tensor | None:
        """After a token of each sequence; None where the model is found to be one that cannot be recorded."""
        with self._lock:
            decoder = self._decoder_for(body, head, cache)
            return None if decoder is None else decoder.step(tokens, cache)

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
        if self._decoder is not None and cache.home is self._decoder and self._recorded[0] == settings:
            return self._decoder
        modules = [*body.modules(), *head.modules()]
        if not isinstance(head, nn.Linear) or not all(map(_is_predictable, modules)):
            cache.refuses_replay = True
            return None
        tensors = [x for module in modules for x in (*module._parameters.values(), *module._buffers.values())]
        weights = [x.detach() for x in tensors if x is not None]
        key = settings, cache.batch_size, tuple(map(id, modules)), tuple((x.data_ptr(), x.dtype) for x in weights)
        if self._decoder is None or self._recorded[:-1] != key:
            if self._decoder is not None:
                self._decoder.release()
            self._decoder = None  # its memory is for the next one
            state = cache.state
            assert state is not None
            self._decoder = Decoder(body, head, state, self._record)
            self._recorded = (*key, (modules, weights))
        return self._decoder


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
