"""The loss on the validation split, while a model is trained."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rebased.training.language.batches import num_targets
from rebased.training.language.layout import TrainingProcesses

__all__ = ["LOGITS_AT_A_TIME", "shares", "validation_loss"]

LOGITS_AT_A_TIME = 2**28
"""Outside of training a model makes its logits: a batch has at most so many, unless one sequence has more."""


def shares(num_sequences: int, batch_size: int, processes: TrainingProcesses) -> list[range]:
    """The batches of this process. All have equally many, as sharded models need it, though some may be empty."""
    share = -(-num_sequences // processes.count)
    first = min(processes.rank * share, num_sequences)
    end = min(first + share, num_sequences)
    starts = range(first, first + share, batch_size)
    return [range(min(start, end), min(start + batch_size, end)) for start in starts]


@torch.no_grad()
def validation_loss(
    model: nn.Module,
    windows: Any,
    batches: Sequence[range],
    collate: Callable[[Sequence[dict[str, Any]]], dict[str, Tensor]],
    *,
    device: torch.device,
    gather_sum: Callable[[Tensor], Tensor],
) -> float:
    """The mean over all tokens of all processes' batches. ``gather_sum`` adds a tensor up over the processes."""
    model.eval()
    total = torch.zeros(2, dtype=torch.float64, device=device)
    for batch in batches:
        # Where there is none the model must run all the same, as it does in other processes.
        chosen = [windows[index] for index in batch] or [windows[0]]
        inputs = {name: x.to(device) for name, x in collate(chosen).items()}
        loss = model(**inputs, num_items_in_batch=1, use_cache=False).loss  # a sum
        if batch:
            total += torch.stack([loss.double(), num_targets(inputs).double()])
    loss_sum, count = gather_sum(total).tolist()
    model.train()
    return loss_sum / count
