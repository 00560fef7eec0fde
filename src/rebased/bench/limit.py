"""The physical limit: the least time that causal ReBased attention in its linear form can take on a device.

Counted per token and head, with E = F(F+1)/2 features and the normaliser as one more column of v, D' = D + 1:

* Bytes. Forward reads q, k, v and writes the output. Backward reads q, k, v and the output's gradient and writes dq,
  dk and dv: the normaliser and the product of the output with its gradient come out of the states it walks through.
  Features and states never leave the chip.
* Products through the state, 2·E·D' each. Forward has two: adding φ(k)v'ᵀ to the state S, and φ(q)·S. Backward has
  five: S again; its product with g, the gradient of (numerator, normaliser), for φ(q); R = Σ φ(q)gᵀ, from the end;
  and its products with φ(k) for v and with v' for φ(k). So backward is 2.5 times forward.
* Products inside a chunk of C tokens, for (C+1)/2 pairs per token. Forward: qᵀk and its multiple of v', 2(F + D') a
  pair. Backward: qᵀk again, g·v', and what they give dq, dk and dv, 2(3F + 2D').

One chunk of each sequence meets no state, and one is not needed in it, so a product through the state is made for
T - C tokens: with C = T the form is quadratic, cheapest for short sequences. C is the best of T and the powers of two
from 16, the smallest tile of a matrix unit. Not counted: making the features, and what else is no matrix product.

Reading and computing can overlap, so the limit of a pass is the *larger* of bytes / bandwidth and FLOPs / rate; the sum
of these would be no bound. Forward and backward cannot overlap, so theirs add up.
"""

from dataclasses import dataclass

from rebased.bench.rates import Rates

__all__ = ["Limit", "compute_limit"]

_SMALLEST_TILE = 16


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The least time of one call."""

    length: int
    """Tokens per sequence."""
    passes: str
    """"forward" or "both"."""
    seconds: float
    """The sum over passes of the larger of the two below."""
    num_bytes: int
    memory_seconds: float
    """``num_bytes`` at the measured bandwidth."""
    flops: int
    compute_seconds: float
    """``flops`` at the measured rate of matrix products."""


def compute_limit(
    length: int,
    passes: str,
    rates: Rates,
    *,
    batch_size: int,
    num_heads: int,
    feature_dim: int,
    head_dim: int,
    element_size: int,
) -> Limit:
    """See the module."""
    F, D = feature_dim, head_dim
    rows = batch_size * num_heads * length
    work = [(rows * (2 * F + 2 * D), batch_size * num_heads * _forward_flops(length, F, D))]
    if passes == "both":
        work.append((rows * (4 * F + 3 * D), batch_size * num_heads * _backward_flops(length, F, D)))
    times = [
        (numbers * element_size / rates.bytes_per_second, flops / rates.flops_per_second) for numbers, flops in work
    ]
    return Limit(
        length=length,
        passes=passes,
        seconds=sum(map(max, times)),
        num_bytes=sum(numbers for numbers, _ in work) * element_size,
        memory_seconds=sum(memory for memory, _ in times),
        flops=sum(flops for _, flops in work),
        compute_seconds=sum(compute for _, compute in times),
    )


def _forward_flops(T: int, F: int, D: int) -> int:
    return _cheapest(T, per_pair=2 * (F + D + 1), through_state=2 * _state_product(F, D))


def _backward_flops(T: int, F: int, D: int) -> int:
    return _cheapest(T, per_pair=2 * (3 * F + 2 * (D + 1)), through_state=5 * _state_product(F, D))


def _state_product(F: int, D: int) -> int:
    return 2 * (F * (F + 1) // 2) * (D + 1)


def _cheapest(T: int, *, per_pair: int, through_state: int) -> int:
    """FLOPs of one sequence and head with the best chunk."""
    chunks = [T]
    chunk = _SMALLEST_TILE
    while chunk < T:
        chunks.append(chunk)
        chunk *= 2
    return min(per_pair * _pairs(T, C) + through_state * (T - C) for C in chunks)


def _pairs(T: int, C: int) -> int:
    """Of a query and a key no later than it, in the same chunk."""
    whole, rest = divmod(T, C)
    return whole * (C * (C + 1) // 2) + rest * (rest + 1) // 2
