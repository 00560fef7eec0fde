"""The model around the mixers: its stream, positions, streaming, chosen positions, initialisation and configuration."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rebased.layers import MIXERS, RWKV, Attention, Mamba
from rebased.models import PRESETS, STACKS, LanguageModel, LayerConfig, ModelConfig, preset

VOCABULARY = 50


def build(name: str, *, dtype: torch.dtype = torch.float64, **changes: Any) -> LanguageModel:
    torch.manual_seed(0)
    config = preset(name, **{"d_model": 24, "seq_len": 32, "vocab_size": VOCABULARY} | changes)
    return LanguageModel(config).to(dtype).eval()


def some_tokens(*shape: int) -> Tensor:
    return torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(1))


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())


every_row = pytest.mark.parametrize("row", STACKS)


# ---- The stream ----


def test_the_stream_by_hand() -> None:
    """Pre-norm; with no MLP the stream gets its own norm; the head is the embedding."""
    model = build("mqar-rebased")
    tokens = some_tokens(2, 9)
    with torch.no_grad():
        x = model.embedding(tokens) + model.position_embedding.weight[:9]
        for block in model.blocks:
            x = x + block.mixer(block.norm(x))
            x = x + block.after_norm(x)
        expected = model.norm(x) @ model.embedding.weight.T
        assert_close(model(tokens), expected)


def test_mambas_block_is_norm_and_mixer_alone() -> None:
    model = build("mqar-mamba")
    assert all(isinstance(block.norm, nn.RMSNorm) and block.after_norm is None for block in model.blocks)


def test_language_models_have_mlps() -> None:
    model = build("lm-rebased")
    assert len(model.blocks) == 18
    assert [block.after.up.out_features for block in model.blocks] == [4 * 24] * 18


# ---- Streams, padding, packing, positions ----


@every_row
def test_token_by_token_equals_the_whole(row: str) -> None:
    model, tokens = build(f"mqar-{row}"), some_tokens(2, 11)
    with torch.no_grad():
        state = model.init_state(2)
        first, state = model(tokens[:, :4], state=state)
        pieces = [first]
        for t in range(4, 11):
            y, state = model(tokens[:, t : t + 1], state=state)
            pieces.append(y)
        assert_close(torch.cat(pieces, dim=1), model(tokens))
    assert state.count.tolist() == [11, 11]


@every_row
def test_padding_and_packing_change_nothing(row: str) -> None:
    model, tokens = build(f"mqar-{row}"), some_tokens(1, 9)
    with torch.no_grad():
        alone, short = model(tokens), model(tokens[:, :4])
        padded = torch.cat([some_tokens(1, 3), tokens], dim=1)
        mask = torch.arange(12)[None] >= 3
        assert_close(model(padded, key_mask=mask)[:, 3:], alone)
        row_of_two = torch.cat([tokens[:, :4], tokens], dim=1)
        assert_close(model(row_of_two, cu_seqlens=torch.tensor([0, 4, 13])), torch.cat([short, alone], dim=1))


@every_row
def test_logits_at_positions(row: str) -> None:
    model, tokens = build(f"mqar-{row}"), some_tokens(2, 9)
    at = torch.tensor([[8, 3], [0, 5]])
    expected = model(tokens).gather(1, at[..., None].expand(2, 2, VOCABULARY))
    actual = model(tokens, at=at)
    assert_close(actual, expected)
    grads = [torch.autograd.grad(x.square().sum(), list(model.parameters())) for x in (actual, expected)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-11)


@every_row
def test_a_training_step_reaches_every_parameter(row: str) -> None:
    model, tokens = build(f"mqar-{row}", dtype=torch.float32).train(), some_tokens(4, 32)
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_more_tokens_than_positions() -> None:
    model = build("mqar-rebased")
    with pytest.raises(ValueError, match="tokens has 33 positions; this model has seq_len=32"):
        model(some_tokens(1, 33))
    _, state = model(some_tokens(1, 30), state=model.init_state(1))
    with pytest.raises(ValueError, match="position reaches from 30 to 32"):
        model(some_tokens(1, 3), state=state)


def test_states_can_be_reordered() -> None:
    model, tokens = build("mqar-conv_attention"), some_tokens(3, 9)
    with torch.no_grad():
        _, state = model(tokens[:, :5], state=model.init_state(3))
        actual, _ = model(tokens[[2, 0], 5:], state=state.reorder(torch.tensor([2, 0])))
        assert_close(actual, model(tokens)[[2, 0], 5:])


def test_state_bytes() -> None:
    model = build("mqar-conv_attention", dtype=torch.float32)
    with torch.no_grad():
        _, state = model(some_tokens(1, 7), state=model.init_state(1))
    assert state.nbytes == model.state_bytes(7) < model.state_bytes(8)


def test_compiles_in_one_piece() -> None:
    model, tokens = build("mqar-rebased"), some_tokens(2, 9)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert_close(compiled(tokens), model(tokens))
        (actual, _), (expected, _) = (f(tokens, state=model.init_state(2)) for f in (compiled, model))
    assert_close(actual, expected)


# ---- Initialisation and dropout ----


def std(x: Tensor) -> float:
    return x.float().std().item()


def test_initialisation() -> None:
    model = build("mqar-conv_attention", d_model=256)
    conv, attention = model.blocks[0].mixer, model.blocks[1].mixer
    for weight in (model.embedding.weight, model.position_embedding.weight, conv.proj.weight):
        assert std(weight) == pytest.approx(0.02, rel=0.05)
    assert std(attention.out_proj.weight) == pytest.approx(0.02 / math.sqrt(2 * 2), rel=0.05)
    assert attention.out_proj.bias.abs().max() == 0
    assert std(conv.conv.weight) == pytest.approx(1 / 3, rel=0.1)  # uniform in ±1/√3, as torch's Conv1d has it
    assert std(build("mqar-based", d_model=256).blocks[1].mixer.o_proj.weight) == pytest.approx(0.02, rel=0.05)


def test_rwkv_keeps_torchs_initialisation() -> None:
    mixer = build("mqar-rwkv", d_model=256).blocks[1].mixer
    assert isinstance(mixer, RWKV)
    assert std(mixer.k_proj.weight) == pytest.approx(1 / math.sqrt(3 * 256), rel=0.05)


def test_mambas_initialisation_and_the_published_one() -> None:
    def steps(name: str) -> Tensor:
        mixer = build(name, d_model=256).blocks[0].mixer
        assert isinstance(mixer, Mamba)
        return nn.functional.softplus(mixer.dt_proj.bias)

    own, published = steps("mqar-mamba"), steps("mqar-mamba_published")
    assert own.min() >= 0.999e-3
    assert own.max() <= 0.1001
    assert own.max() / own.min() > 30
    assert torch.allclose(published, torch.full_like(published, math.log(2)))


def test_dropouts() -> None:
    assert {name: preset(name).embedding_dropout for name in ("mqar-rebased", "mqar-mamba", "lm-based")} == {
        "mqar-rebased": 0.1,
        "mqar-mamba": 0.0,
        "lm-based": 0.0,
    }
    model, tokens = build("mqar-attention"), some_tokens(2, 9)
    assert all(isinstance(block.mixer, Attention) and block.mixer.dropout.p == 0.1 for block in model.blocks)
    assert torch.equal(model(tokens), model(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))


# ---- Configurations ----


@pytest.mark.parametrize("name", PRESETS)
def test_configurations_survive_json(name: str) -> None:
    config = preset(name)
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_seq_len_reaches_the_mixers_that_need_it() -> None:
    layers = preset("mqar-cosformer", seq_len=77).layers
    assert layers[1].options["kernel_options"] == {"max_len": 77}


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: preset("mqar-gpt"), "name='mqar-gpt' is unknown; there are mqar-attention, mqar-conv_attention"),
        (lambda: preset("mqar-based", width=3), "ModelConfig has no width; there are d_model, seq_len"),
        (lambda: preset("mqar-based", d_model=0), "d_model=0 must be at least 1"),
        (
            lambda: LayerConfig(mixer="rebased", options={"num_head": 3}),
            r"do not fit mixer='rebased', which takes \(norm",
        ),
        (lambda: LayerConfig(mixer="hyena"), r"do not fit mixer='hyena', which takes \(seq_len, order=2"),
        (lambda: ModelConfig.from_dict({"d_model": 3, "seq_len": 2, "layers": ["based"]}), "layers has 'based'; each"),
        (lambda: ModelConfig.from_dict({"d_model": 3}), "ModelConfig needs seq_len, layers"),
        (lambda: LayerConfig(mixer="s4"), "there is no mixer 's4'; there are rebased, based"),
        (lambda: LayerConfig(mixer="based", norm="batch"), "norm='batch' is unknown; it may be 'layer', 'rms'"),
        (lambda: replace(preset("mqar-based"), layers=()), "must be one LayerConfig or more"),
        (lambda: replace(preset("mqar-based"), embedding_dropout=1.0), "embedding_dropout=1.0 must be at least 0"),
        (lambda: ModelConfig.from_dict({"d_model": 3, "depth": 2}), "ModelConfig has no depth"),
        (lambda: LanguageModel(preset("mqar-based", d_model=8)), "num_heads=12 must be at most d_model=8"),
        (lambda: build("mqar-based")(torch.zeros(2, 3)), "it must be \\(B, T\\), int32 or int64"),
    ],
)
def test_bad_configurations(make: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()


def test_mixer_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed later, for want of a method that nobody had heard of."""
    monkeypatch.setitem(MIXERS, "plain", nn.Linear)
    with pytest.raises(TypeError, match=r"MIXERS\['plain'\] is Linear; it must be a subclass of .*Mixer"):
        LayerConfig(mixer="plain", options={"out_features": 3})


def test_rows_are_what_their_names_say() -> None:
    conv, copy = ("short_conv", {}), ("previous_token", {})
    attention = ("attention", {"num_heads": 1, "dropout": 0.1})
    kernels = {"linear_transformer": "elu+1", "elementwise_square": "elementwise_square", "dpfp": "dpfp", "rfa": "rfa"}
    expected = {
        "attention": [attention, attention],
        "conv_attention": [conv, attention],
        "rwkv": [("rwkv", {"layer": 0, "num_layers": 2}), ("rwkv", {"layer": 1, "num_layers": 2})],
        "conv_rwkv": [conv, ("rwkv", {"layer": 1, "num_layers": 2})],
        "mamba": [("mamba", {"init": "own"})] * 2,
        "mamba_published": [("mamba", {"init": "published"})] * 2,
        "hyena": [("hyena", {"seq_len": 99, "first_filter": False})] * 2,
        "conv_hyena": [conv, ("hyena", {"seq_len": 99, "first_filter": False})],
        "h3": [("h3", {})] * 2,
        "based": [conv, ("based", {})],
        "rebased": [conv, ("rebased", {})],
        "x2": [conv, ("rebased", {"norm": False, "gamma": False, "beta": False})],
        "norm_x2": [conv, ("rebased", {"gamma": False, "beta": False})],
        "gamma_x2": [conv, ("rebased", {"norm": False, "beta": False})],
        "gamma_beta_x2": [conv, ("rebased", {"norm": False})],
        "cosformer": [conv, ("kernel_attention", {"kernel": "cosformer", "kernel_options": {"max_len": 99}})],
        "learned_polynomial": [conv, ("kernel_attention", {"kernel": "based", "learn_coefficients": True})],
        "copy_attention": [copy, attention],
        "copy_based": [copy, ("based", {})],
        "copy_rebased": [copy, ("rebased", {})],
    } | {row: [conv, ("kernel_attention", {"kernel": kernel})] for row, kernel in kernels.items()}
    found = {row: [(layer.mixer, layer.options) for layer in stack(99)] for row, stack in STACKS.items()}
    assert found == expected


def test_language_models_have_heads_of_16_and_12() -> None:
    for name in ("lm-based", "lm-rebased"):
        conv, mixer = preset(name).layers[:2]
        assert conv.mixer == "short_conv"
        assert mixer.options == {"num_heads": 64, "feature_dim": 16, "head_dim": 12}


def test_configurations_are_nobody_elses_to_change() -> None:
    options = {"num_heads": 2}
    layer = LayerConfig(mixer="attention", options=options)
    options["num_heads"] = 3
    preset("mqar-conv_attention").layers[1].options["num_heads"] = 7
    assert layer.options == {"num_heads": 2}
    assert preset("mqar-conv_attention").layers[1].options["num_heads"] == 1


def test_layers_may_come_from_anywhere() -> None:
    config = ModelConfig(d_model=24, seq_len=8, layers=(LayerConfig(mixer="based") for _ in range(2)))
    assert len(LanguageModel(config).blocks) == 2
    assert ModelConfig.from_dict(config.to_dict()) == config


# ---- Arguments that do not fit; export ----


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"cu_seqlens": torch.tensor([0, 8])}, "cu_seqlens"),
        ({"cu_seqlens": torch.tensor([[0, 9]])}, "cu_seqlens has shape"),
        ({"key_mask": torch.ones(9, dtype=torch.bool)}, "key_mask has shape"),
        ({"key_mask": torch.ones(1, 8, dtype=torch.bool)}, "key_mask has shape"),
        ({"at": torch.tensor([[9]])}, "at reaches from 9 to 9"),
        ({"state": 3}, "state has 3 sequences; it must have 1, as many as there are here"),
    ],
)
def test_arguments_that_do_not_fit(options: dict[str, Any], match: str) -> None:
    model = build("mqar-rebased")
    if "state" in options:
        options = {"state": model.init_state(options["state"])}
    with pytest.raises(ValueError, match=match):
        model(some_tokens(1, 9), **options)


@pytest.mark.parametrize("row", ["rebased", "conv_attention", "mamba", "rwkv"])
def test_a_decoding_step_can_be_exported(row: str) -> None:
    """In float32, where sums have residuals."""
    model, tokens = build(f"mqar-{row}", dtype=torch.float32), some_tokens(2, 5)
    with torch.no_grad():
        _, state = model(tokens[:, :4], state=model.init_state(2))
        exported = torch.export.export(model, (tokens[:, 4:],), {"state": state}, strict=False).module()
        expected, actual = model(tokens[:, 4:], state=state)[0], exported(tokens[:, 4:], state=state)[0]
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("row", STACKS)
def test_models_can_begin_on_the_meta_device(row: str) -> None:
    """With the same numbers as if they had begun elsewhere, but for the order of random ones."""
    config = preset(f"mqar-{row}", d_model=24, seq_len=32, vocab_size=VOCABULARY)
    torch.manual_seed(0)
    expected = LanguageModel(config)
    with torch.device("meta"):
        model = LanguageModel(config)
    model = model.to_empty(device="cpu")  # filled with NaN in tests
    assert not all(parameter.isfinite().all() for parameter in model.parameters())
    model.reset_parameters()
    for (name, actual), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert actual.isfinite().all(), name
        if actual.numel() > 200:
            assert actual.std().item() == pytest.approx(theirs.std().item(), rel=0.3, abs=1e-6), name
            assert actual.mean().item() == pytest.approx(theirs.mean().item(), abs=0.3 * theirs.abs().max().item()), (
                name
            )
    mamba = model.blocks[0].mixer
    if isinstance(mamba, Mamba) and mamba.init == "own":
        assert nn.functional.softplus(mamba.dt_proj.bias).max() <= 0.1001


# ---- Losses ----


@pytest.mark.parametrize("with_at", [False, True])
def test_labels_give_losses(with_at: bool) -> None:
    model, tokens, labels = build("mqar-rebased"), some_tokens(2, 9), some_tokens(2, 9)
    at = torch.tensor([[3, 8], [0, 5]]) if with_at else None
    labels = labels if at is None else labels.gather(1, at)
    logits = model(tokens, at=at)
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    torch.testing.assert_close(model(tokens, at=at, labels=labels), expected.view(labels.shape))
    losses, _ = model(tokens, at=at, labels=labels, state=model.init_state(2))
    torch.testing.assert_close(losses, expected.view(labels.shape))
    labels[0, 0] = -100
    assert model(tokens, at=at, labels=labels)[0, 0] == 0
    with pytest.raises(ValueError, match=r"labels has shape \(2, 1\)"):
        model(tokens, at=at, labels=labels[:, :1])


@pytest.mark.parametrize(
    ("tokens", "labels", "match"),
    [
        ([[1, -1, 2]], None, "tokens has tokens from -1 to 2; the vocabulary has 0 to 15"),
        ([[1, 16, 2]], None, "tokens has tokens from 1 to 16"),
        ([[1, 2, 3]], [[-100, 16, 2]], "labels has tokens from 0 to 16"),
    ],
)
def test_words_beyond_the_vocabulary(tokens: list[list[int]], labels: list[list[int]] | None, match: str) -> None:
    """An index of -1 would be the last word."""
    model = LanguageModel(preset("mqar-rebased", d_model=12, seq_len=4, vocab_size=16))
    with pytest.raises(ValueError, match=match):
        model(torch.tensor(tokens), labels=None if labels is None else torch.tensor(labels))
