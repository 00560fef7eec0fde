"""Sequences joined to a batch, as the model takes it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rebased.corpora.windows import IGNORED

__all__ = ["collate", "collate_packed", "num_targets"]


def collate(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Sequences of one length as rows. A first token is nobody's to predict, and says so: some count labels."""
    tokens = _stack(rows, "input_ids")
    labels = tokens.clone()
    labels[:, 0] = IGNORED
    return {"input_ids": tokens, "labels": labels}


def collate_packed(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """All sequences in one row, with borders where a document begins: none sees another one."""
    tokens, labels, positions = (_stack(rows, name) for name in ("input_ids", "labels", "position_ids"))
    starts = (positions.flatten() == 0).nonzero()[:, 0]
    borders = torch.cat([starts, starts.new_tensor([tokens.numel()])])
    return {"input_ids": tokens.view(1, -1), "labels": labels.view(1, -1), "cu_seqlens": borders}


def num_targets(batch: dict[str, Tensor]) -> Tensor:
    return (batch["labels"][:, 1:] != IGNORED).sum()


def _stack(rows: Sequence[dict[str, Any]], name: str) -> Tensor:
    return torch.stack([torch.as_tensor(row[name]) for row in rows]).long()
