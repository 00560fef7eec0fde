"""The paper's rows: two-layer stacks for recall, by name."""

from collections.abc import Callable
from typing import Any

from rebased.models.config import LayerConfig

__all__ = ["STACKS"]

Stack = Callable[[int], tuple[LayerConfig, ...]]
"""The layers, given seq_len."""

ATTENTION_DROPOUT = 0.1


def _layer(mixer: str, **options: Any) -> LayerConfig:
    return LayerConfig(mixer=mixer, options=options)


def _twice(layer: LayerConfig) -> Stack:
    return lambda seq_len: (layer, layer)


def _after_conv(layer: LayerConfig) -> Stack:
    return lambda seq_len: (_layer("short_conv"), layer)


def _kernel(name: str, **options: Any) -> LayerConfig:
    return _layer("kernel_attention", kernel=name, **({"kernel_options": options} if options else {}))


def _mamba(init: str) -> LayerConfig:
    """Its block is add, norm, mixer, and nothing after that."""
    return LayerConfig(mixer="mamba", options={"init": init}, norm="rms", after="nothing")


_ATTENTION = _layer("attention", num_heads=1, dropout=ATTENTION_DROPOUT)

STACKS: dict[str, Stack] = {
    "attention": _twice(_ATTENTION),
    "conv_attention": _after_conv(_ATTENTION),
    "rwkv": lambda seq_len: (_layer("rwkv", layer=0, num_layers=2), _layer("rwkv", layer=1, num_layers=2)),
    "conv_rwkv": _after_conv(_layer("rwkv", layer=1, num_layers=2)),
    "mamba": _twice(_mamba("own")),
    "mamba_published": _twice(_mamba("published")),
    "hyena": lambda seq_len: (_layer("hyena", seq_len=seq_len, first_filter=False),) * 2,
    "h3": _twice(_layer("h3")),
    "based": _after_conv(_layer("based")),
    "rebased": _after_conv(_layer("rebased")),
    "x2": _after_conv(_layer("rebased", norm=False, gamma=False, beta=False)),
    "norm_x2": _after_conv(_layer("rebased", gamma=False, beta=False)),
    "gamma_x2": _after_conv(_layer("rebased", norm=False, beta=False)),
    "gamma_beta_x2": _after_conv(_layer("rebased", norm=False)),
    "linear_transformer": _after_conv(_kernel("elu+1")),
    "elementwise_square": _after_conv(_kernel("elementwise_square")),
    "cosformer": lambda seq_len: (_layer("short_conv"), _kernel("cosformer", max_len=seq_len)),
    "dpfp": _after_conv(_kernel("dpfp")),
    "rfa": _after_conv(_kernel("rfa")),
    "learned_polynomial": _after_conv(_layer("kernel_attention", kernel="based", learn_coefficients=True)),
}
"""Rows of Figure 1 and Tables 1 and 4, and what the paper cites beside them."""
