"""Small models learn to recall: three pairs, then queries, as in the paper's task but with a vocabulary of 30."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rebased.models import LanguageModel, preset

VOCABULARY, SEQ_LEN, NUM_PAIRS = 30, 16, 3


def examples(num: int, seed_or_generator: int | torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens k v k v …, 0 or a query; where the queries are; their values."""
    generator = seed_or_generator
    if isinstance(generator, int):
        generator = torch.Generator().manual_seed(generator)

    def distinct(count: int) -> Tensor:
        return torch.rand(num, count, generator=generator).argsort(dim=1)[:, :NUM_PAIRS]

    half = VOCABULARY // 2
    keys, values = 1 + distinct(half - 1), half + distinct(half)
    at = 2 * NUM_PAIRS + 2 * distinct((SEQ_LEN - 2 * NUM_PAIRS) // 2)
    tokens = torch.zeros(num, SEQ_LEN, dtype=torch.int64)
    tokens[:, : 2 * NUM_PAIRS : 2], tokens[:, 1 : 2 * NUM_PAIRS : 2] = keys, values
    return tokens.scatter(1, at, keys), at, values


def accuracy(model: LanguageModel) -> float:
    tokens, at, values = examples(500, 1)
    with torch.no_grad():
        return (model.eval()(tokens, at=at).argmax(dim=-1) == values).float().mean().item()


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ("conv_attention", {"num_heads": 1}),
        ("based", {"num_heads": 2, "feature_dim": 16}),
        ("rebased", {"num_heads": 2, "feature_dim": 16}),
    ],
)
def test_learns_to_recall(row: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    config = preset(f"mqar-{row}", d_model=64, seq_len=SEQ_LEN, vocab_size=VOCABULARY, embedding_dropout=0.0)
    conv, mixer = config.layers
    model = LanguageModel(replace(config, layers=(conv, replace(mixer, options=options))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.1)
    generator = torch.Generator().manual_seed(0)
    found = accuracy(model)
    assert found < 0.2
    for _ in range(120):  # nine runs needed 7 to 29 of them
        model.train()
        for _ in range(25):
            tokens, at, values = examples(64, generator)
            loss = functional.cross_entropy(model(tokens, at=at).flatten(0, 1), values.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found = accuracy(model)
        if found > 0.97:
            break
    assert found > 0.95
