"""What a task gives: sequences, and at which positions which token is to be predicted."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["IGNORED", "Examples", "in_blocks"]

IGNORED = -100
"""The label of positions where nothing is to be predicted, which torch's cross-entropy ignores."""
BLOCK_NUMBERS = 1 << 22
"""What is in memory while examples are made, roughly."""


@dataclass(frozen=True, eq=False)
class Examples:
    """N sequences of L tokens, each with labels at P positions."""

    inputs: Int[Tensor, "N L"]
    positions: Int[Tensor, "N P"]
    """Where a label is, ascending."""
    answers: Int[Tensor, "N P"]
    """The labels there."""

    @cached_property
    def labels(self) -> Int[Tensor, "N L"]:
        """The same for every position, `IGNORED` where there is none."""
        labels = torch.full_like(self.inputs, IGNORED, dtype=torch.int64)
        return labels.scatter_(1, self.positions, self.answers)

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def __getitem__(self, index: slice | Int[Tensor, " M"]) -> Self:
        return type(self)(self.inputs[index], self.positions[index], self.answers[index])

    def to(self, device: torch.device | str) -> Self:
        return type(self)(self.inputs.to(device), self.positions.to(device), self.answers.to(device))


def in_blocks(
    make: Callable[[Int[Tensor, " M"]], Examples],
    num_examples: int,
    first_example: int,
    *,
    numbers_each: int,
    device: torch.device | str,
) -> Examples:
    """Examples ``first_example`` …, made a few at a time: making one takes memory for ``numbers_each`` numbers."""
    size = max(1, BLOCK_NUMBERS // numbers_each)
    indices = torch.arange(first_example, first_example + num_examples, device=device)
    parts = [make(block) for block in indices.split(size)]
    return Examples(
        *(torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "positions", "answers"))
    )
