"""The loss of every token of a text under any causal language model of transformers, without all logits at once.

Logits of a window are hundreds of times its tokens' other numbers: what the head sees is computed once, and the head
is applied piece by piece. Some architectures do more than that between head and logits (a scale, a soft cap); they are
recognised by their logits, and asked for all of a window's.
"""

import logging
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rebased.ops import linear_cross_entropy

__all__ = ["TokenLosses"]

_log = logging.getLogger(__name__)

PIECE_NUMBERS = 2**24
"""How many logits there are at a time, unless one token has more."""

PROBE_TOKENS = 8
"""Of the text on which a head is tried."""


class TokenLosses:
    """``losses(tokens)``: of each token but the first of a row, given those before it."""

    def __init__(self, model: Any) -> None:
        """``model``: what `AutoModelForCausalLM` loads, in evaluation mode. ValueError for one in training."""
        if model.training:
            raise ValueError("model is in training, where dropout acts; call model.eval() first")
        self.model = model
        self._has_plain_head: bool | None = None

    @torch.no_grad()
    def __call__(
        self, tokens: Int[Tensor, "B T"], *, position_ids: Int[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T1"]:
        """At [b, t] the loss of token t + 1, in float32 (float64 for a model of that); T1 = T - 1.

        ``position_ids``, which begin anew at each text of a row: tokens see those of their own text only. At a text's
        first token there is then no meaning in the loss.
        """
        if position_ids is not None:
            return self._of_texts(tokens, position_ids)
        return self._of_rows(tokens)

    def _of_texts(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        from rebased.hf import RebasedForCausalLM

        if isinstance(self.model, RebasedForCausalLM):  # all rows' texts are one packed row
            flat = self._of_rows(tokens.reshape(1, -1), position_ids.reshape(1, -1))
            return torch.nn.functional.pad(flat, (0, 1)).view(tokens.shape)[:, :-1]
        losses = torch.zeros(tokens.shape[0], tokens.shape[1] - 1, device=tokens.device)
        for row, start, stop in _texts(position_ids):
            if stop - start > 1:
                found = self._of_rows(tokens[row : row + 1, start:stop])
                losses = losses.to(found.dtype)
                losses[row, start : stop - 1] = found[0]
        return losses

    def _of_rows(self, tokens: Tensor, position_ids: Tensor | None = None) -> Tensor:
        if self._has_plain_head is None:
            self._has_plain_head = self._tell_head(tokens[:1, :PROBE_TOKENS])
            if not self._has_plain_head:
                _log.info("the logits are not the head's alone: each window's are computed as a whole")
        given, labels = {"input_ids": tokens[:, :-1]}, tokens[:, 1:]
        if position_ids is not None:
            given["position_ids"] = position_ids[:, :-1]
        if not self._has_plain_head:
            rows = [{name: x[row : row + 1] for name, x in given.items()} for row in range(len(tokens))]
            logits = (self.model(use_cache=False, **row).logits[0] for row in rows)
            return torch.stack([_cross_entropy(each, wanted) for each, wanted in zip(logits, labels, strict=True)])
        x = self.model.base_model(use_cache=False, **given).last_hidden_state
        losses = _head_losses(self.model.get_output_embeddings(), x.flatten(0, 1), labels.flatten())
        return losses.view(labels.shape)

    def _tell_head(self, tokens: Tensor) -> bool:
        """Whether the logits are the output embeddings' of what the base model gives, bit by bit."""
        head, base = self.model.get_output_embeddings(), self.model.base_model
        if head is None or base is self.model:
            return False
        features = getattr(base(input_ids=tokens, use_cache=False), "last_hidden_state", None)
        if features is None or features.shape[-1] != head.weight.shape[-1]:
            return False
        return torch.equal(head(features).float(), self.model(input_ids=tokens, use_cache=False).logits.float())


def _head_losses(head: nn.Module, x: Float[Tensor, "N M"], labels: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    if isinstance(head, nn.Linear) and head.bias is None:
        return linear_cross_entropy(x, head.weight, labels)
    rows = max(1, PIECE_NUMBERS // head(x[:1]).shape[-1])
    pieces = zip(x.split(rows), labels.split(rows), strict=True)
    return torch.cat([_cross_entropy(head(some), some_labels) for some, some_labels in pieces])


def _cross_entropy(logits: Float[Tensor, "N V"], labels: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


def _texts(position_ids: Int[Tensor, "B T"]) -> Iterator[tuple[int, int, int]]:
    """Row, start and stop of each text."""
    for row, positions in enumerate(position_ids):
        starts = sorted({0, *(positions == 0).nonzero().flatten().tolist()})
        for start, stop in zip(starts, [*starts[1:], len(positions)], strict=True):
            yield row, start, stop
