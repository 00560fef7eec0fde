"""Losses of any architecture's tokens, against all its logits in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from rebased.analysis import token_losses
from rebased.analysis.token_losses import TokenLosses
from rebased.hf import RebasedConfig, RebasedForCausalLM

VOCABULARY = 61
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "initializer_range": 0.5,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
_HEADS = {"num_attention_heads": 2}


def make(name: str) -> Any:
    torch.manual_seed(0)
    if name == "rebased":
        config = RebasedConfig(**_SIZES | _HEADS, feature_dim=4, max_position_embeddings=64)
        return RebasedForCausalLM(config).double().eval()
    if name == "gpt2":
        return GPT2LMHeadModel(GPT2Config(**_SIZES | _HEADS)).double().eval()
    if name == "gptj, whose head has a bias":
        model = GPTJForCausalLM(GPTJConfig(**_SIZES, n_head=2, rotary_dim=4)).double().eval()
        nn.init.normal_(model.lm_head.bias)
        return model
    if name == "gemma2, which caps its logits":
        sizes = {"num_key_value_heads": 1, "intermediate_size": 16, "head_dim": 8, "final_logit_softcapping": 2.0}
        return Gemma2ForCausalLM(Gemma2Config(**_SIZES | _HEADS | sizes)).double().eval()
    return MambaForCausalLM(MambaConfig(**_SIZES, state_size=4)).double().eval()


NAMES = ["rebased", "gpt2", "gptj, whose head has a bias", "gemma2, which caps its logits", "mamba"]


def some_tokens() -> Tensor:
    return torch.randint(0, VOCABULARY, (3, 20), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def by_all_logits(model: Any, tokens: Tensor) -> Tensor:
    chances = model(tokens).logits[:, :-1].double().log_softmax(dim=-1)
    return -chances.gather(-1, tokens[:, 1:, None])[..., 0]


def check(name: str, found: Tensor, expected: Tensor) -> None:
    error = 1e-5 if name == "mamba" else 1e-9  # its logits are float32 whatever the weights
    torch.testing.assert_close(found.double(), expected, rtol=error, atol=error)


@pytest.mark.parametrize("name", NAMES)
def test_are_those_of_all_logits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_losses, "PIECE_NUMBERS", 7 * VOCABULARY)  # pieces of 7 of the 57 rows
    model, tokens = make(name), some_tokens()
    check(name, TokenLosses(model)(tokens), by_all_logits(model, tokens))


@pytest.mark.parametrize("name", NAMES)
def test_texts_in_a_row_do_not_see_each_other(name: str) -> None:
    model, tokens = make(name), some_tokens()
    lengths = ([5, 1, 14], [20], [1, 1, 18])
    positions = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in lengths])
    found = TokenLosses(model)(tokens, position_ids=positions)
    assert found.shape == (3, 19)
    for row, texts in enumerate(lengths):
        start = 0
        for length in texts:
            if length > 1:
                alone = by_all_logits(model, tokens[row : row + 1, start : start + length])
                check(name, found[row, start : start + length - 1], alone[0])
            start += length


def test_texts_of_a_head_that_is_not_plain() -> None:
    """Packed texts stay apart also where all logits are computed."""
    model, tokens = make("rebased"), some_tokens()
    positions = torch.cat([torch.arange(8), torch.arange(12)]).expand(3, -1)
    losses, usual = TokenLosses(model), TokenLosses(model)
    losses._has_plain_head = False
    is_inside = positions[:, 1:] > 0
    found, expected = (each(tokens, position_ids=positions)[is_inside] for each in (losses, usual))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_head_sees_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_losses, "PIECE_NUMBERS", 7 * VOCABULARY)
    model = make("gptj, whose head has a bias")
    losses, seen = TokenLosses(model), []
    losses(some_tokens())
    with model.lm_head.register_forward_hook(lambda _, inputs, out: seen.append(out.shape[:-1].numel())):
        losses(some_tokens())
    assert max(seen) == 7
    assert sum(seen) == 57 + 1  # one row says how wide the logits are


def test_a_plain_heads_logits_are_never_there(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("gpt2")
    losses = TokenLosses(model)
    losses(some_tokens())
    with model.lm_head.register_forward_hook(lambda *_: pytest.fail("the head was called")):
        losses(some_tokens())


def test_not_in_training() -> None:
    with pytest.raises(ValueError, match="model is in training"):
        TokenLosses(make("gpt2").train())
