"""Dropout whose choices can be a function of a key, so that a run among others drops what it drops alone."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["Dropout", "derive_keys", "use_keys"]

_START = 0x1B56C4E9
"""Else seed 0 would begin with the key 0, which mixes to 0."""


class Dropout(nn.Module):
    """``nn.Dropout``, until `use_keys` gives it a ``key``: then that alone decides what is dropped.

    A key is two numbers: a random one, and the number of the input's first row within its batch. So where a batch
    comes in parts, the same elements are dropped as in the whole.
    """

    key: Int[Tensor, "2"] | None

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("key", None, persistent=False)

    def extra_repr(self) -> str:
        return f"p={self.p}"

    @property
    def acts(self) -> bool:
        return self.training and self.p > 0

    def forward(self, x: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        if not self.acts:
            return x
        if self.key is None:
            return nn.functional.dropout(x, self.p)
        return torch.where(_kept(self.key, x.shape, self.p), x / (1 - self.p), 0.0)


def use_keys(model: nn.Module) -> list[str]:
    """Give every `Dropout` that acts a key; their names among the model's buffers, in a fixed order."""
    names = []
    for name, module in model.named_modules():
        if isinstance(module, Dropout) and module.p > 0:
            module.key = torch.zeros(2, dtype=torch.int64)
            names.append(f"{name}.key" if name else "key")
    return names


def derive_keys(seeds: Int[Tensor, " R"], step: int, count: int, *, first_row: int = 0) -> Int[Tensor, "count R 2"]:
    """Keys of ``count`` modules at a step, for each seed."""
    places = torch.arange(count, device=seeds.device)[:, None]
    keys = _mixed(_mixed(_mixed(seeds + _START) + step) + places)
    return torch.stack([keys, torch.full_like(keys, first_row)], dim=-1)


def _kept(key: Int[Tensor, "2"], shape: torch.Size, p: float) -> Tensor:
    """True with probability 1 - p, to 2⁻¹⁶. A number of 64 bits decides about four elements, if rows allow that."""
    shared = 4 if math.prod(shape[1:]) % 4 == 0 else 1
    row_words = math.prod(shape[1:]) // shared
    words = _mixed(key[0] + key[1] * row_words + torch.arange(shape[0] * row_words, device=key.device))
    parts = words[:, None] >> 16 * torch.arange(shared, device=key.device) & 0xFFFF
    return (parts >= round(p * 2**16)).view(shape)


def _mixed(z: Tensor) -> Tensor:
    """The finalizer of SplitMix64 (Steele et al. 2014); products wrap around, shifts fill with zeros."""
    z = (z ^ (z >> 30 & (1 << 34) - 1)) * _wrapped(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> 27 & (1 << 37) - 1)) * _wrapped(0x94D049BB133111EB)
    return z ^ (z >> 31 & (1 << 33) - 1)


def _wrapped(number: int) -> int:
    """The same 64 bits as a signed number."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
