"""Sequences of many lengths in one row, by ``cu_seqlens``, without padding.

Padded to the longest, most of such a batch is padding. Packed, it is one row of real tokens; the borders say where
sequences begin, and none sees another. The loss is the same, and so are its gradients.

    python examples/packing.py
"""

import time

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rebased.models import LanguageModel, preset


def sequences(number: int, longest: int) -> list[Tensor]:
    """Most of them short, as sentences and documents are."""
    generator = torch.Generator().manual_seed(0)
    lengths = (longest * torch.rand(number, generator=generator) ** 3).long().clamp(min=1)
    lengths[0] = longest
    return [torch.randint(256, (length,), generator=generator) for length in lengths.tolist()]


def padded_loss(model: LanguageModel, rows: list[Tensor]) -> Tensor:
    """Mean over the tokens that have a next one."""
    tokens = pad_sequence(rows, batch_first=True)
    is_real = pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in rows], batch_first=True)
    next_ones = tokens[:, 1:].where(is_real[:, 1:], -1)  # a negative label has no loss
    losses = model(tokens[:, :-1], key_mask=is_real[:, :-1], labels=next_ones)
    return losses.sum() / (next_ones >= 0).sum()


def packed_loss(model: LanguageModel, rows: list[Tensor]) -> Tensor:
    lengths = torch.tensor([len(row) for row in rows])
    borders = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    tokens = torch.cat(rows)
    next_ones = tokens.roll(-1)
    next_ones[borders[1:] - 1] = -1  # a sequence's last token has none
    losses = model(tokens[None], cu_seqlens=borders, labels=next_ones[None])
    return losses.sum() / (next_ones >= 0).sum()


def main(number: int = 64, longest: int = 512) -> None:
    rows = sequences(number, longest)
    num_real = sum(len(row) for row in rows)
    print(f"{number} sequences of 1 to {longest} tokens: {num_real:,} tokens, {number * longest:,} with padding")

    torch.manual_seed(0)
    model = LanguageModel(preset("mqar-rebased", d_model=64, seq_len=longest, vocab_size=256)).eval()
    found = {}
    for name, loss_of in (("padded", padded_loss), ("packed", packed_loss)):
        model.zero_grad()
        start = time.perf_counter()
        loss = loss_of(model, rows)
        loss.backward()
        found[name] = loss.item(), model.embedding.weight.grad.clone()
        print(f"{name}: loss {loss.item():.6f}, {time.perf_counter() - start:.2f} s for loss and gradients")
    torch.testing.assert_close(found["packed"], found["padded"], rtol=1e-4, atol=1e-6)


if __name__ == "__main__":
    main()
