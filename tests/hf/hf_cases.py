"""Small Hugging Face models for the tests."""

from typing import Any

import torch

from rebased.hf import RebasedConfig, RebasedForCausalLM
from rebased.layers import MIXERS

VOCABULARY = 61
MIXER_NAMES = tuple(MIXERS)


def small_config(*layer_types: str, **changes: Any) -> RebasedConfig:
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 24,
        "num_attention_heads": 4,
        "feature_dim": 4,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,  # large enough that one token differs from another
    }
    layer_types = layer_types or ("short_conv", "rebased")
    return RebasedConfig(layer_types=layer_types, num_hidden_layers=len(layer_types), **sizes | changes)


def small_model(*layer_types: str, dtype: torch.dtype = torch.float64, **changes: Any) -> RebasedForCausalLM:
    torch.manual_seed(0)
    return RebasedForCausalLM(small_config(*layer_types, **changes)).to(dtype).eval()


def some_tokens(batch_size: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (batch_size, length), generator=torch.Generator().manual_seed(seed))
