"""Attention maps against what layers compute, and against a softmax written out."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rebased.analysis.attention_maps import attention_map
from rebased.layers import MIXERS
from rebased.models import LanguageModel, LayerConfig, preset

SEQ_LEN = 11
D_MODEL = 12

SECOND_LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("attention", {"num_heads": 3}),
    "window": ("attention", {"num_heads": 4, "num_key_heads": 2, "window": 3}),
    "rotary": ("attention", {"num_heads": 3, "rotary": True}),
    "based": ("based", {"num_heads": 3, "feature_dim": 5}),
    "rebased": ("rebased", {"num_heads": 4, "num_key_heads": 2, "feature_dim": 5}),
    "x2": ("rebased", {"num_heads": 3, "feature_dim": 5, "norm": False, "gamma": False, "beta": False}),
    "linear transformer": ("kernel_attention", {"num_heads": 3, "feature_dim": 5}),
    "cosformer": ("kernel_attention", {"kernel": "cosformer", "kernel_options": {"max_len": 20}, "num_heads": 2}),
}
every_layer = pytest.mark.parametrize("name", SECOND_LAYERS)


def build(mixer: str, *, first: str = "previous_token", **options: Any) -> LanguageModel:
    torch.manual_seed(0)
    layers = (LayerConfig(mixer=first), LayerConfig(mixer=mixer, options=options))
    config = replace(preset("mqar-rebased"), d_model=D_MODEL, seq_len=20, vocab_size=40, layers=layers, init_std=0.5)
    return LanguageModel(config).double().eval()


def some_tokens() -> Tensor:
    return torch.randint(0, 40, (2, SEQ_LEN), generator=torch.Generator().manual_seed(1))


@every_layer
def test_rows_sum_to_one_and_see_no_future(name: str) -> None:
    mixer, options = SECOND_LAYERS[name]
    found = attention_map(build(mixer, **options), some_tokens())
    assert found.shape == (2, SEQ_LEN, SEQ_LEN)
    assert found.dtype == torch.float64
    assert (found >= 0).all()
    assert torch.equal(found, found.tril())
    # The kernel layers' eps is in the normaliser: 3e-9 of a first token that is hardly similar to itself.
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(2, SEQ_LEN, dtype=torch.float64), rtol=0, atol=1e-7)


@every_layer
def test_some_rows_are_rows_of_the_whole(name: str) -> None:
    mixer, options = SECOND_LAYERS[name]
    model, tokens = build(mixer, **options), some_tokens()
    at = torch.tensor([[10, 3, 3], [0, 7, 9]])
    whole = attention_map(model, tokens)
    expected = torch.stack([whole[row, at[row]] for row in range(2)])
    torch.testing.assert_close(attention_map(model, tokens, at=at), expected, rtol=0, atol=1e-12)


@every_layer
def test_the_map_times_values_is_what_the_layer_computes(name: str) -> None:
    """With one head, before the output projection, whose input is looked at."""
    mixer, options = SECOND_LAYERS[name]
    model = build(mixer, **{key: x for key, x in options.items() if key != "num_key_heads"} | {"num_heads": 1})
    tokens, last = some_tokens(), model.blocks[-1].mixer
    found = attention_map(model, tokens)
    seen: dict[str, Tensor] = {}
    output = last.out_proj if mixer == "attention" else last.o_proj
    output.register_forward_pre_hook(lambda _, inputs: seen.update(mixed=inputs[0]))
    last.v_proj.register_forward_hook(lambda _, inputs, values: seen.update(values=values))
    with torch.no_grad():
        model(tokens)
    torch.testing.assert_close(found @ seen["values"], seen["mixed"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("window", [None, 3])
def test_a_softmax_written_out(window: int | None) -> None:
    """One query and head after another; the first layer adds the token before."""
    model, tokens = build("attention", num_heads=3, window=window), some_tokens()
    first, second = model.blocks
    with torch.no_grad():
        stream = model.embedding(tokens) + model.position_embedding.weight[:SEQ_LEN]
        normed = first.norm(stream)
        stream = stream + normed + torch.cat([torch.zeros_like(normed[:, :1]), normed[:, :-1]], dim=1)
        stream = stream + first.after_norm(stream)
        x = second.norm(stream)
        q, k = second.mixer.q_proj(x), second.mixer.k_proj(x)
    size = D_MODEL // 3
    expected = torch.zeros(2, SEQ_LEN, SEQ_LEN, dtype=torch.float64)
    for b in range(2):
        for t in range(SEQ_LEN):
            keys = range(0 if window is None else max(0, t + 1 - window), t + 1)
            for head in range(3):
                part = slice(head * size, (head + 1) * size)
                scores = [math.exp(float(q[b, t, part] @ k[b, s, part]) / math.sqrt(size)) for s in keys]
                for s, score in zip(keys, scores, strict=True):
                    expected[b, t, s] += score / sum(scores) / 3
    torch.testing.assert_close(attention_map(model, tokens), expected, rtol=0, atol=1e-9)


def test_nothing_similar_is_a_row_of_zeros() -> None:
    """s² of a query that is zero."""
    model = build("rebased", num_heads=2, norm=False, gamma=False, beta=False)
    with torch.no_grad():
        model.blocks[1].mixer.q_proj.weight.zero_()
    assert (attention_map(model, some_tokens()) == 0).all()


def test_any_layer_may_be_looked_at() -> None:
    model, tokens = build("attention", first="based"), some_tokens()
    assert not torch.equal(attention_map(model, tokens, layer=0), attention_map(model, tokens))
    assert torch.equal(attention_map(model, tokens, layer=1), attention_map(model, tokens, layer=-1))


def test_looking_leaves_no_trace() -> None:
    model = build("rebased")
    attention_map(model, some_tokens())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_mixer_of_ones_own_may_have_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    class Uniform(MIXERS["previous_token"]):
        def attention_weights(self, x: Tensor, at: Tensor | None = None) -> Tensor:
            return torch.full((x.shape[0], 1, x.shape[1], x.shape[1]), 1 / x.shape[1])

    monkeypatch.setitem(MIXERS, "uniform", Uniform)
    assert (attention_map(build("uniform"), some_tokens()) == 1 / SEQ_LEN).all()


@pytest.mark.parametrize(
    ("mixer", "options", "match"),
    [
        (
            "mamba",
            {},
            r"is a Mamba, which has no attention map; these have: rebased, based, kernel_attention, attention",
        ),
        ("rebased", {"layer": 0}, "layer=0 is a PreviousToken, which has no attention map"),
        ("rebased", {"layer": 2}, "layer=2 is not there: the model has 2"),
        ("rebased", {"at": torch.tensor([[11], [0]])}, r"positions must be in 0 \.\. 10"),
        ("rebased", {"at": torch.tensor([[1]])}, "at has shape"),
    ],
)
def test_bad_input(mixer: str, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        attention_map(build(mixer), some_tokens(), **options)


def test_not_while_dropout_acts() -> None:
    with pytest.raises(ValueError, match=r"call model\.eval\(\) first"):
        attention_map(build("rebased").train(), some_tokens())
