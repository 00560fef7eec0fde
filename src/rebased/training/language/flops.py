"""How much of what a device can do goes into the model."""

from collections.abc import Iterator
from typing import Any

import torch

from rebased.layers import Attention, KernelAttention, Mixer
from rebased.models import LanguageModel

__all__ = ["flops_per_token", "peak_flops"]

PEAK_FLOPS = {
    "H100 PCIE": 756e12,
    "H100 NVL": 835e12,
    "H200": 989.5e12,
    "H100": 989.5e12,
    "A100": 312e12,
}
"""Dense bf16 products per second, by what is in the device's name; the first that fits."""


def peak_flops(device_name: str, dtype: str) -> float | None:
    """None for devices and dtypes that are not listed: a wrong peak is worse than none."""
    if dtype != "bfloat16":
        return None
    return next((peak for name, peak in PEAK_FLOPS.items() if name in device_name.upper()), None)


def flops_per_token(model: LanguageModel, seq_len: int) -> int:
    """Of a training step: ``6N + 3 × what the mixers do beside their weights``.

    N is all parameters but the position table; the embeddings count once, as the head. The factors: a product and a
    sum, forward and twice backward. What an implementation computes again or in vain does not count.
    """
    positions = model.position_embedding
    num_used = sum(x.numel() for x in model.parameters()) - (0 if positions is None else positions.weight.numel())
    return 6 * num_used + 3 * sum(_mixing_flops(mixer, seq_len) for mixer in _mixers(model))


def _mixers(model: LanguageModel) -> Iterator[Mixer]:
    return (block.mixer for block in model.blocks)


def _mixing_flops(mixer: Mixer, seq_len: int) -> int:
    """Forward, of one token. Convolutions are all weights, and scans multiply no matrices: 0."""
    if isinstance(mixer, KernelAttention):  # a token's features times its values into the state, and the state read
        state: Any = mixer.init_state(1, device="meta", dtype=torch.float32)
        _, num_key_heads, num_features, head_dim = state.values.shape
        return 2 * num_features * head_dim * (num_key_heads + mixer.num_heads)
    if isinstance(mixer, Attention):  # scores and their sum of values, over the tokens seen on average
        seen = min(seq_len, mixer.window or seq_len)
        average = seen - seen * (seen - 1) / (2 * seq_len)
        return round(4 * mixer.d_model * average)
    return 0
