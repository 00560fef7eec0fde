"""Multi-query associative recall (Arora et al. 2023), as the paper's code defines it."""

import math

import torch
from jaxtyping import Int
from torch import Tensor

from rebased.checks import check_positive_number
from rebased.tasks.checks import check_examples, check_pairs, check_vocabulary
from rebased.tasks.examples import Examples, in_blocks
from rebased.tasks.pairs import ORDER, draw_pairs, fill, interleaved
from rebased.tasks.sampling import MAX_WEIGHT_BITS, weighted_order

__all__ = ["mqar"]


def mqar(
    num_examples: int,
    seq_len: int,
    num_pairs: int,
    *,
    vocab_size: int = 8192,
    power: float = 0.01,
    random_non_queries: bool = False,
    seed: int = 0,
    first_example: int = 0,
    device: torch.device | str = "cpu",
) -> Examples:
    """Examples ``first_example`` … of the endless set that ``seed`` stands for; the same on every device.

    An example begins with its pairs, k₁ v₁ k₂ v₂ …; later each key comes once more, and its value is the label there.
    With 3 pairs and 12 tokens::

        inputs  7 91  3 88  5 97  3  0  7  0  5  0
        labels  .  .  .  .  .  .  88 . 91  . 97  .

    Queries stand at 2·num_pairs + 2·g with gaps g drawn without replacement, the first key's first, with weights
    (g + 1)^(power - 1). Other places hold token 0, or with ``random_non_queries`` any token. ValueError unless seq_len
    is even, at least 4·num_pairs, and less than vocab_size.
    """
    check_examples(num_examples, first_example, seed)
    if seq_len % 2:
        raise ValueError(f"seq_len={seq_len} must be even")
    check_pairs(num_pairs, seq_len, needed=4 * num_pairs)
    check_vocabulary(vocab_size, seq_len)
    check_positive_number("power", power)
    num_gaps = (seq_len - 2 * num_pairs) // 2
    if abs(power - 1) * math.log2(num_gaps) > MAX_WEIGHT_BITS:
        raise ValueError(
            f"power={power} would make one of {num_gaps} gaps more than 2**{MAX_WEIGHT_BITS} times as likely as another"
        )
    weights = tuple((gap + 1) ** (power - 1) for gap in range(num_gaps))

    def make(examples: Int[Tensor, " M"]) -> Examples:
        keys, values = draw_pairs(seed, examples, num_pairs, vocab_size)
        gaps = weighted_order(seed, examples, weights, purpose=ORDER)[:, :num_pairs]
        inputs = torch.zeros(len(examples), seq_len, dtype=torch.int64, device=examples.device)
        inputs[:, : 2 * num_pairs] = interleaved(keys, values)
        places = 2 * num_pairs + 2 * gaps
        inputs.scatter_(1, places, keys)
        positions, order = places.sort(dim=1)
        return Examples(
            fill(inputs, seed, examples, vocab_size, at_random=random_non_queries), positions, values.gather(1, order)
        )

    return in_blocks(make, num_examples, first_example, numbers_each=seq_len + 2 * num_pairs, device=device)
