"""Associative recall of one key."""

import torch
from jaxtyping import Int
from torch import Tensor

from rebased.tasks.checks import check_examples, check_pairs, check_vocabulary
from rebased.tasks.examples import Examples, in_blocks
from rebased.tasks.pairs import ORDER, draw_pairs, fill, interleaved
from rebased.tasks.sampling import random_numbers

__all__ = ["single_query_recall"]


def single_query_recall(
    num_examples: int,
    seq_len: int,
    num_pairs: int,
    *,
    vocab_size: int = 8192,
    random_non_queries: bool = False,
    seed: int = 0,
    first_example: int = 0,
    device: torch.device | str = "cpu",
) -> Examples:
    """The pairs, filler, and one of the keys as the last token, whose label is its value."""
    check_examples(num_examples, first_example, seed)
    check_pairs(num_pairs, seq_len, needed=2 * num_pairs + 1)
    check_vocabulary(vocab_size, seq_len)

    def make(examples: Int[Tensor, " M"]) -> Examples:
        keys, values = draw_pairs(seed, examples, num_pairs, vocab_size)
        chosen = random_numbers(seed, examples, 1, num_pairs, purpose=ORDER)
        inputs = torch.zeros(len(examples), seq_len, dtype=torch.int64, device=examples.device)
        inputs[:, : 2 * num_pairs] = interleaved(keys, values)
        inputs[:, -1:] = keys.gather(1, chosen)
        return Examples(
            fill(inputs, seed, examples, vocab_size, at_random=random_non_queries),
            torch.full_like(chosen, seq_len - 1),
            values.gather(1, chosen),
        )

    return in_blocks(make, num_examples, first_example, numbers_each=seq_len + 2 * num_pairs, device=device)
