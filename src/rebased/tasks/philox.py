"""Random numbers that are a function of (seed, where they are used): the same bits on every device.

Philox4x32-10 (Salmon et al. 2011): a counter of four 32-bit words, mixed with a key of two, gives four random words.
Words are held in int64, whose products wrap around as those of unsigned numbers do, in their lower 64 bits.
"""

import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["philox", "random_words"]

MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Four words of 32 bits for each counter; words of counters and key are in 0 .. 2³² - 1."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, c = (product1 >> 32 & MASK) ^ b ^ k0, (product0 >> 32 & MASK) ^ d ^ k1
        b, d = product1 & MASK, product0 & MASK
        k0, k1 = (k0 + _KEY_STEPS[0]) & MASK, (k1 + _KEY_STEPS[1]) & MASK
    return a, b, c, d


def random_words(
    seed: int, examples: Int[Tensor, " N"], num_words: int, *, purpose: int, start: int = 0
) -> Int[Tensor, "N words"]:
    """Words ``start`` … of what each example has for one ``purpose``; ``start`` is a multiple of 4."""
    blocks = torch.arange(start // 4, start // 4 + -(-num_words // 4), device=examples.device)
    low, high, block = torch.broadcast_tensors(examples[:, None] & MASK, examples[:, None] >> 32 & MASK, blocks)
    words = philox((low, high, block, torch.full_like(low, purpose)), (seed & MASK, seed >> 32 & MASK))
    return torch.stack(words, dim=2).flatten(1)[:, :num_words]
