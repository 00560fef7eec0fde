"""The paper's rows: two-layer stacks for recall, by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rebased.models.config import LayerConfig

__all__ = ["STACKS"]

Stack = Callable[[int], tuple[LayerConfig, ...]]
"""The layers, given seq_len."""

ATTENTION_DROPOUT = 0.1


def _layer(mixer: str, **options: Any) -> LayerConfig:
    return LayerConfig(mixer=mixer, options=options)


def _twice(mixer: str, **options: Any) -> Stack:
    return lambda seq_len: (_layer(mixer, **options), _layer(mixer, **options))


def _after_conv(mixer: str, **options: Any) -> Stack:
    return lambda seq_len: (_layer("short_conv"), _layer(mixer, **options))


def _after_copy(mixer: str, **options: Any) -> Stack:
    return lambda seq_len: (_layer("previous_token"), _layer(mixer, **options))


def _kernel(name: str) -> Stack:
    return _after_conv("kernel_attention", kernel=name)


def _mamba(init: str) -> Stack:
    """Its block is add, norm, mixer, and nothing after that."""
    layer = LayerConfig(mixer="mamba", options={"init": init}, norm="rms", after="nothing")
    return lambda seq_len: (replace(layer), replace(layer))


def _cosformer(seq_len: int) -> tuple[LayerConfig, ...]:
    return _after_conv("kernel_attention", kernel="cosformer", kernel_options={"max_len": seq_len})(seq_len)


def _hyena(seq_len: int) -> tuple[LayerConfig, ...]:
    return _twice("hyena", **_hyena_options(seq_len))(seq_len)


def _conv_hyena(seq_len: int) -> tuple[LayerConfig, ...]:
    return _after_conv("hyena", **_hyena_options(seq_len))(seq_len)


def _hyena_options(seq_len: int) -> dict[str, Any]:
    """With one long convolution, as its authors count."""
    return {"seq_len": seq_len, "first_filter": False}


_ATTENTION = {"num_heads": 1, "dropout": ATTENTION_DROPOUT}

STACKS: dict[str, Stack] = {
    "attention": _twice("attention", **_ATTENTION),
    "conv_attention": _after_conv("attention", **_ATTENTION),
    "rwkv": lambda seq_len: (_layer("rwkv", layer=0, num_layers=2), _layer("rwkv", layer=1, num_layers=2)),
    "conv_rwkv": _after_conv("rwkv", layer=1, num_layers=2),
    "mamba": _mamba("own"),
    "mamba_published": _mamba("published"),
    "hyena": _hyena,
    "conv_hyena": _conv_hyena,
    "h3": _twice("h3"),
    "based": _after_conv("based"),
    "rebased": _after_conv("rebased"),
    "x2": _after_conv("rebased", norm=False, gamma=False, beta=False),
    "norm_x2": _after_conv("rebased", gamma=False, beta=False),
    "gamma_x2": _after_conv("rebased", norm=False, beta=False),
    "gamma_beta_x2": _after_conv("rebased", norm=False),
    "linear_transformer": _kernel("elu+1"),
    "elementwise_square": _kernel("elementwise_square"),
    "cosformer": _cosformer,
    "dpfp": _kernel("dpfp"),
    "rfa": _kernel("rfa"),
    "learned_polynomial": _after_conv("kernel_attention", kernel="based", learn_coefficients=True),
    "copy_attention": _after_copy("attention", **_ATTENTION),
    "copy_based": _after_copy("based"),
    "copy_rebased": _after_copy("rebased"),
}
"""Rows of Figure 1 and Tables 1, 3 (those that copy) and 4, and what the paper cites beside them."""
