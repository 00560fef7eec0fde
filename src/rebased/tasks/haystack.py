"""MQAR in a haystack: the pairs lie at some depth among filler, the queries are the last tokens."""

import torch
from jaxtyping import Int
from torch import Tensor

from rebased.tasks.checks import check_examples, check_pairs, check_vocabulary
from rebased.tasks.examples import Examples, in_blocks
from rebased.tasks.pairs import ORDER, draw_pairs, fill, interleaved
from rebased.tasks.sampling import weighted_order

__all__ = ["mqar_haystack"]


def mqar_haystack(
    num_examples: int,
    seq_len: int,
    num_pairs: int,
    *,
    depth: float = 0.5,
    vocab_size: int = 8192,
    random_non_queries: bool = False,
    seed: int = 0,
    first_example: int = 0,
    device: torch.device | str = "cpu",
) -> Examples:
    """As `rebased.tasks.mqar`, but the pairs lie deeper, after int((seq_len - 3·num_pairs) · depth) fillers.

    ``depth`` is in 0 .. 1. The other fillers come next; the queries, shuffled, are the last num_pairs tokens.
    """
    check_examples(num_examples, first_example, seed)
    check_pairs(num_pairs, seq_len, needed=3 * num_pairs)
    check_vocabulary(vocab_size, seq_len)
    if not 0 <= depth <= 1:
        raise ValueError(f"depth={depth} must be between 0 and 1")
    start = int((seq_len - 3 * num_pairs) * depth)

    def make(examples: Int[Tensor, " M"]) -> Examples:
        keys, values = draw_pairs(seed, examples, num_pairs, vocab_size)
        order = weighted_order(seed, examples, (1.0,) * num_pairs, purpose=ORDER)
        inputs = torch.zeros(len(examples), seq_len, dtype=torch.int64, device=examples.device)
        inputs[:, start : start + 2 * num_pairs] = interleaved(keys, values)
        inputs[:, seq_len - num_pairs :] = keys.gather(1, order)
        positions = torch.arange(seq_len - num_pairs, seq_len, device=examples.device).expand(len(examples), num_pairs)
        return Examples(
            fill(inputs, seed, examples, vocab_size, at_random=random_non_queries), positions, values.gather(1, order)
        )

    return in_blocks(make, num_examples, first_example, numbers_each=seq_len + 2 * num_pairs, device=device)
