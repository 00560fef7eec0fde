"""Complete configurations by name: the recall models of Table 4 and the language models of Table 9."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rebased.models.config import LayerConfig, ModelConfig, check_names
from rebased.models.stacks import STACKS

__all__ = ["PRESETS", "preset"]

_DROPOUT = 0.1
_LM_VOCABULARY = 50304
"""50257 tokens, padded."""


def _recall(stack: str) -> ModelConfig:
    """Mamba's models have no dropout."""
    seq_len = 256
    return ModelConfig(
        d_model=64,
        seq_len=seq_len,
        layers=STACKS[stack](seq_len),
        vocab_size=8192,
        embedding_dropout=0.0 if stack.startswith("mamba") else _DROPOUT,
    )


def _language_model(layers: tuple[LayerConfig, ...]) -> ModelConfig:
    return ModelConfig(d_model=768, seq_len=4096, layers=layers, vocab_size=_LM_VOCABULARY)


def _with_mlp(mixer: str, **options: Any) -> LayerConfig:
    return LayerConfig(mixer=mixer, options=options, after="mlp")


def _alternating(mixer: str) -> tuple[LayerConfig, ...]:
    """18 layers, convolution and mixer in turn; queries and keys are 1024 wide in total (Table 9 fits to the unit)."""
    pairs = [(_with_mlp("short_conv"), _with_mlp(mixer, num_heads=64, feature_dim=16, head_dim=12)) for _ in range(9)]
    return tuple(layer for pair in pairs for layer in pair)


def _attention() -> tuple[LayerConfig, ...]:
    return tuple(_with_mlp("attention", num_heads=12, qkv_bias=False) for _ in range(12))


_LANGUAGE_MODELS: dict[str, Callable[[], tuple[LayerConfig, ...]]] = {
    "lm-attention": _attention,
    "lm-based": lambda: _alternating("based"),
    "lm-rebased": lambda: _alternating("rebased"),
}

PRESETS = (*(f"mqar-{stack}" for stack in STACKS), *_LANGUAGE_MODELS)


def preset(name: str, **changes: Any) -> ModelConfig:
    """The configuration of that name, with some of `ModelConfig`'s fields changed.

    ``preset("mqar-rebased", d_model=64, seq_len=256)``. ValueError, listing what there is, for an unknown name.
    """
    if name not in PRESETS:
        raise ValueError(f"name={name!r} is unknown; there are {', '.join(PRESETS)}")
    if name in _LANGUAGE_MODELS:
        config = _language_model(_LANGUAGE_MODELS[name]())
    else:
        stack = name.removeprefix("mqar-")
        config = _recall(stack)
        if "seq_len" in changes and "layers" not in changes:
            changes = changes | {"layers": STACKS[stack](changes["seq_len"])}
    check_names(ModelConfig, changes)
    return replace(config, **changes)
