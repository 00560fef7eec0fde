"""Dropout whose choices can be a function of a key, so that a run among others drops what it drops alone."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["Dropout", "derive_keys", "use_keys"]


class Dropout(nn.Module):
    """``nn.Dropout``, until `use_keys` gives it a ``key``: then the key alone decides what is dropped."""

    key: Int[Tensor, ""] | None

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
            module.key = torch.zeros((), dtype=torch.int64)
            names.append(f"{name}.key" if name else "key")
    return names


def derive_keys(seeds: Int[Tensor, " R"], step: int, count: int) -> Int[Tensor, "count R"]:
    """Keys of ``count`` modules at a step, for each seed: a function of these three alone."""
    places = torch.arange(count, device=seeds.device)[:, None]
    return _mixed(_mixed(_mixed(seeds) + step) + places)


def _kept(key: Int[Tensor, ""], shape: torch.Size, p: float) -> Tensor:
    """True with probability 1 - p, to 2⁻¹⁶: each number of 64 bits decides about four elements."""
    size = math.prod(shape)
    counters = torch.arange(-(-size // 4), device=key.device)
    words = _mixed(key + counters)
    parts = words[:, None] >> 16 * torch.arange(4, device=key.device) & 0xFFFF
    return (parts.flatten()[:size] >= round(p * 2**16)).view(shape)


def _mixed(z: Tensor) -> Tensor:
    """The finalizer of SplitMix64 (Steele et al. 2014); products wrap around, shifts fill with zeros."""
    z = (z ^ (z >> 30 & (1 << 34) - 1)) * _wrapped(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> 27 & (1 << 37) - 1)) * _wrapped(0x94D049BB133111EB)
    return z ^ (z >> 31 & (1 << 33) - 1)


def _wrapped(number: int) -> int:
    """The same 64 bits as a signed number."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
