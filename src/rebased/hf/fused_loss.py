"""The loss of a language model without its logits, which for a large vocabulary are most of training's memory."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rebased.ops import linear_cross_entropy

__all__ = ["fused_causal_loss"]


def fused_causal_loss(
    hidden: Float[Tensor, "B T M"],
    weight: Float[Tensor, "V M"],
    labels: Int[Tensor, "B T"],
    *,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Int[Tensor, "B T"] | None = None,
    **_: Any,
) -> Float[Tensor, ""]:
    """What transformers' own loss of causal models is, with its arguments, given what the head sees and its weight.

    The mean over labels other than ``ignore_index``, which are shifted here unless ``shift_labels`` are given; with
    ``num_items_in_batch`` their sum over that number, as batches in parts need it.
    """
    if shift_labels is None:
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    if shift_labels.shape != hidden.shape[:-1]:
        raise ValueError(f"labels has shape {tuple(labels.shape)}; it must be {tuple(hidden.shape[:-1])}")
    targets = shift_labels.flatten().to(hidden.device)
    is_target = targets != ignore_index
    losses = linear_cross_entropy(hidden.flatten(0, -2), weight, targets.where(is_target, 0))
    total = losses.where(is_target, 0.0).sum()
    if num_items_in_batch is None:
        return total / is_target.sum()
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(total.device)
    return total / num_items_in_batch
