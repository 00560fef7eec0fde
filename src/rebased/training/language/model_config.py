"""The model of a run: a preset, with changes, for a corpus."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rebased.training.language.config import LanguageRunConfig

if TYPE_CHECKING:
    from rebased.hf import RebasedConfig

__all__ = ["VOCABULARY_MULTIPLE", "make_model_config", "padded_vocabulary", "read_changes"]

VOCABULARY_MULTIPLE = 64
"""Tables are padded to a multiple of this many rows, as matrix products like them: 50277 becomes 50304."""


def padded_vocabulary(size: int) -> int:
    return -(-size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


def make_model_config(config: LanguageRunConfig, *, vocab_size: int, end_of_text: int | None = None) -> "RebasedConfig":
    """ValueError, naming it, for an unknown preset or field, too few positions, or a vocabulary that is too small."""
    from rebased.hf import PRESETS

    if config.model not in PRESETS:
        raise ValueError(f"model={config.model!r} is no preset; there are {', '.join(PRESETS)}")
    try:
        return _changed_preset(config, vocab_size, end_of_text)
    except TypeError as error:  # a text for a number, and the like
        raise ValueError(f"changes={config.changes!r} cannot be made to the preset: {error}") from error


def _changed_preset(config: LanguageRunConfig, vocab_size: int, end_of_text: int | None) -> "RebasedConfig":
    from rebased.hf import preset

    changes: dict[str, Any] = {"vocab_size": padded_vocabulary(vocab_size)} | config.changes
    if changes["vocab_size"] < vocab_size:
        raise ValueError(f"vocab_size={changes['vocab_size']} is less than the corpus's {vocab_size}")
    if "max_position_embeddings" not in changes:
        positions = preset(config.model).max_position_embeddings
        changes["max_position_embeddings"] = max(positions, config.seq_len)
    if changes["max_position_embeddings"] < config.seq_len:
        raise ValueError(
            f"seq_len={config.seq_len} is more than max_position_embeddings={changes['max_position_embeddings']}"
        )
    if end_of_text is not None:
        changes |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end_of_text)
    return preset(config.model, **changes)


def read_changes(settings: Sequence[str]) -> dict[str, Any]:
    """``["hidden_size=64", "layer_types=[...]"]`` as a dictionary; values are JSON, or else text."""
    changes: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise ValueError(f"{setting!r} must be of the form name=value")
        try:
            changes[name] = json.loads(text)
        except json.JSONDecodeError:
            changes[name] = text
    return changes
