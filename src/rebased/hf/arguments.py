"""What transformers calls models with, as ours take it."""

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rebased.hf.cache import RebasedCache
from rebased.replay import is_capturing

__all__ = ["check_shapes", "find_key_mask", "placeholder_tokens", "positions_to_keep", "wants_dict"]


def find_key_mask(
    attention_mask: Tensor | None, tokens: Tensor, cache: RebasedCache | None
) -> Bool[Tensor, "B T"] | None:
    """Of these tokens; None where all are real, which a GPU is waited for to say."""
    if attention_mask is None:
        return None
    T, before = tokens.shape[1], 0 if cache is None else cache.num_seen
    if attention_mask.ndim != 2 or attention_mask.shape[0] != tokens.shape[0]:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; it must be (B, T), 1 where a token is real"
        )
    if attention_mask.shape[1] not in (T, before + T):
        raise ValueError(
            f"attention_mask has {attention_mask.shape[1]} columns; there are {T} tokens, and {before} before them"
        )
    key_mask = attention_mask[:, -T:].bool()
    if not torch.compiler.is_compiling() and not is_capturing(tokens) and bool(key_mask.all()):
        return None
    return key_mask


def check_shapes(input_ids: Tensor | None, inputs_embeds: Tensor | None, labels: Tensor | None) -> None:
    for name, x, shape in (("input_ids", input_ids, "(B, T)"), ("inputs_embeds", inputs_embeds, "(B, T, hidden_size)")):
        if x is None:
            continue
        if x.ndim != shape.count(",") + 1:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; it must be {shape}")
        if labels is not None and labels.shape != x.shape[:2]:
            raise ValueError(f"labels has shape {tuple(labels.shape)}; it must be {tuple(x.shape[:2])}, as {name}")


def positions_to_keep(logits_to_keep: int | Tensor, given: Tensor) -> Int[Tensor, "B P"] | None:
    batch_size, T = given.shape[:2]
    if isinstance(logits_to_keep, int):
        if logits_to_keep < 0:
            raise ValueError(f"logits_to_keep={logits_to_keep} must not be negative")
        if logits_to_keep == 0 or logits_to_keep >= T:
            return None
        logits_to_keep = torch.arange(T - logits_to_keep, T, device=given.device)
    return logits_to_keep.expand(batch_size, -1)


def placeholder_tokens(embeddings: Tensor | None) -> Int[Tensor, "B T"]:
    """Tokens that are not looked up: they say how many there are, and where."""
    assert embeddings is not None
    return torch.zeros(embeddings.shape[:2], dtype=torch.int64, device=embeddings.device)


def wants_dict(return_dict: bool | None, config: Any) -> bool:
    return bool(config.return_dict if return_dict is None else return_dict)
