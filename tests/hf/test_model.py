"""The Hugging Face classes: what they compute, save, load and refuse."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hf_cases import MIXER_NAMES, VOCABULARY, small_config, small_model, some_tokens
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PretrainedConfig

from rebased import models
from rebased.analysis.saved_model import load_saved_model
from rebased.hf import PRESETS, RebasedConfig, RebasedForCausalLM, RebasedModel, preset
from rebased.layers import MIXERS
from rebased.models import LanguageModel

EXACT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize(
    ("name", "count"), [("attention", 126_807_552), ("based", 156_955_392), ("rebased", 156_992_256)]
)
def test_table_9_counts(name: str, count: int) -> None:
    with torch.device("meta"):
        model = RebasedForCausalLM(preset(name))
    model.tie_weights()
    assert model.num_parameters() == count


@pytest.mark.parametrize("name", ["attention", "based", "rebased"])
def test_presets_are_those_of_models(name: str) -> None:
    """Table 9 is written down twice, in each room's own names."""
    with torch.device("meta"):
        ours, theirs = LanguageModel(models.preset(f"lm-{name}")), LanguageModel(preset(name).to_model_config())
    shapes = [{key: x.shape for key, x in model.state_dict().items()} for model in (ours, theirs)]
    assert shapes[0] == shapes[1]
    for mine, other in zip(ours.blocks, theirs.blocks, strict=True):
        assert repr(mine) == repr(other)


def test_a_longer_position_table() -> None:
    assert preset("rebased", max_positions=32768).max_position_embeddings == 32768
    assert preset("attention").max_position_embeddings == 4096


@pytest.mark.parametrize("name", [name for name in PRESETS if name.endswith("-small")])
def test_small_presets_run(name: str) -> None:
    model = RebasedForCausalLM(preset(name, vocab_size=VOCABULARY)).eval()
    assert model(some_tokens(2, 9)).logits.shape == (2, 9, VOCABULARY)


def test_the_model_is_ours() -> None:
    """Same weights, same logits; the head is tied."""
    model, tokens = small_model(), some_tokens(2, 9)
    torch.testing.assert_close(model(tokens).logits, model.model.backbone(tokens), **EXACT)
    assert model.lm_head.weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("mixer", MIXER_NAMES)
def test_saved_and_loaded(mixer: str, tmp_path: Path) -> None:
    model, tokens = small_model("short_conv", mixer, dtype=torch.float32), some_tokens(2, 9)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, RebasedForCausalLM)
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert loaded.config.layer_types == ["short_conv", mixer]
    assert isinstance(AutoModel.from_pretrained(tmp_path), RebasedModel)
    assert loaded.lm_head.weight is loaded.get_input_embeddings().weight


def test_a_mixer_that_was_not_imported_is_named(tmp_path: Path) -> None:
    """Of a saved model, in another process."""
    with patch.dict(MIXERS, {"mine": MIXERS["short_conv"]}):
        small_model("rebased", "mine").save_pretrained(tmp_path)
        AutoModelForCausalLM.from_pretrained(tmp_path)
    message = (
        "there is no mixer 'mine'; .*; one of your own must be imported first, so that it is in rebased.layers.MIX"
    )
    for load in (AutoConfig.from_pretrained, AutoModelForCausalLM.from_pretrained, load_saved_model):
        with pytest.raises(ValueError, match=message):
            load(tmp_path)


def test_a_program_that_never_heard_of_us(tmp_path: Path) -> None:
    """In a fresh process, with trust_remote_code alone; what it saves again loads again."""
    model, tokens = small_model(dtype=torch.float32), some_tokens(1, 5)
    model.save_pretrained(tmp_path / "a")
    program = f"""
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
assert "rebased" not in sys.modules
model = AutoModelForCausalLM.from_pretrained({str(tmp_path / "a")!r}, trust_remote_code=True)
model.save_pretrained({str(tmp_path / "b")!r})
print(model(torch.tensor({tokens.tolist()})).logits.sum().item())
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert float(said.stdout) == pytest.approx(model(tokens).logits.sum().item(), rel=1e-4)
    assert {path.name for path in (tmp_path / "b").iterdir()} == {path.name for path in (tmp_path / "a").iterdir()}
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "b", trust_remote_code=True)
    assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_loss_is_of_the_next_token() -> None:
    model, tokens = small_model(), some_tokens(2, 9)
    labels = tokens.clone()
    labels[0, :5] = -100
    out = model(tokens, labels=labels)
    expected = cross_entropy(out.logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
    torch.testing.assert_close(out.loss.float(), expected)


@pytest.mark.parametrize("kept", [1, 3, 9, 20, torch.tensor([2, 7])], ids=str)
def test_logits_to_keep(kept: Any) -> None:
    model, tokens = small_model(), some_tokens(2, 9)
    whole = model(tokens).logits
    expected = whole[:, kept] if isinstance(kept, torch.Tensor) else whole[:, -kept:]
    torch.testing.assert_close(model(tokens, logits_to_keep=kept).logits, expected, **EXACT)


@pytest.mark.parametrize("mixer", MIXER_NAMES)
def test_packed_by_position_ids_and_borders(mixer: str) -> None:
    model, lengths = small_model("short_conv", mixer), (4, 1, 7)
    rows = [some_tokens(1, length, seed=length) for length in lengths]
    packed = torch.cat(rows, dim=1)
    expected = torch.cat([model(row).logits for row in rows], dim=1)
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    torch.testing.assert_close(model(packed, position_ids=positions).logits, expected, **EXACT)
    torch.testing.assert_close(model(packed, cu_seqlens=torch.tensor([0, 4, 5, 12])).logits, expected, **EXACT)
    mask = torch.ones_like(packed)
    torch.testing.assert_close(model(packed, position_ids=positions, attention_mask=mask).logits, expected, **EXACT)


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # the compiler asks
def test_packed_by_position_ids_and_compiled() -> None:
    model, rows = small_model(), [some_tokens(1, length, seed=length) for length in (5, 7)]
    compiled = torch.compile(model, backend="aot_eager")
    positions = torch.cat([torch.arange(row.shape[1]) for row in rows])[None]
    with torch.no_grad():
        expected = torch.cat([model(row).logits for row in rows], dim=1)
        found = compiled(torch.cat(rows, dim=1), position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize(
    ("batch_size", "positions"),
    [(1, [0, 1, 0, 2]), (1, [3, 4, 0, 1]), (1, [7, 8, 9, 10]), (2, [0, 1, 0, 1])],
    ids=str,
)
def test_positions_of_another_kind(batch_size: int, positions: list[int]) -> None:
    with pytest.raises(ValueError, match="position_ids must count up"):
        small_model()(some_tokens(batch_size, 4), position_ids=torch.tensor([positions] * batch_size))


def test_embeddings_in_place_of_tokens() -> None:
    model, tokens = small_model(), some_tokens(2, 9)
    embeddings = model.get_input_embeddings()(tokens)
    torch.testing.assert_close(model(inputs_embeds=embeddings).logits, model(tokens).logits, **EXACT)


def test_hidden_states_and_tuples() -> None:
    model, tokens = small_model(), some_tokens(2, 9)
    out = model(tokens, output_hidden_states=True)
    assert [tuple(x.shape) for x in out.hidden_states] == [(2, 9, 24)] * 3
    torch.testing.assert_close(model.lm_head(out.hidden_states[-1]), out.logits, **EXACT)
    assert torch.equal(model(tokens, return_dict=False)[0], out.logits)


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    tokens, found = some_tokens(2, 9), []
    for enabled in (False, True):
        model = small_model("short_conv", "rebased", "attention").train()
        if enabled:
            model.gradient_checkpointing_enable()
        model(tokens, labels=tokens).loss.backward()
        found.append({name: x.grad for name, x in model.named_parameters()})
    for name, expected in found[0].items():
        torch.testing.assert_close(found[1][name], expected, **EXACT)


def test_compiled() -> None:
    model, tokens = small_model(dtype=torch.float32), some_tokens(2, 9)
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens, use_cache=False).logits, model(tokens).logits)


def test_embeddings_can_be_resized() -> None:
    model = small_model(dtype=torch.float32)
    model.resize_token_embeddings(VOCABULARY + 3)
    assert model(torch.tensor([[VOCABULARY + 2]])).logits.shape == (1, 1, VOCABULARY + 3)


def test_a_config_that_is_changed() -> None:
    """Layers and their number change together; what does not fit is found before anything is trained."""
    config = small_config("short_conv", "rebased")
    config.layer_types = ["mamba"]
    assert config.num_hidden_layers == 1
    assert len(RebasedForCausalLM(config).model.backbone.blocks) == 1
    config.num_hidden_layers = 2
    with pytest.raises(ValueError, match="layer_types has 1 entries, num_hidden_layers is 2; they change together"):
        RebasedForCausalLM(config)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_types": ["rebasd", "conv"]}, "there is no mixer 'conv', 'rebasd'; there are rebased, "),
        ({"layer_types": ["rebased"], "num_hidden_layers": 2}, "layer_types has 1 entries, num_hidden_layers is 2"),
        ({"layer_options": {"rebased": {"nrom": True}}, "layer_types": ["rebased"] * 18}, "nrom"),
        ({"hidden_size": 0}, "hidden_size=0 must be a positive integer"),
        ({"feature_dim": "None"}, "feature_dim='None' must be a positive integer"),
        ({"layer_types": "attention"}, "layer_types='attention' must be a list"),
        ({"layer_types": []}, "layer_types has 0 entries, num_hidden_layers is 18"),
        ({"embedding_dropout": 2.0}, "embedding_dropout"),
        (
            {"position_embedding_type": "rotary"},
            "position_embedding_type='rotary' is unknown; it may be",
        ),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_configs(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RebasedConfig(**fields)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("hiden_size", "hidden_size"),
        ("num_attention_head", "num_attention_heads"),
        ("layer_type", "layer_types"),
        ("d_model", "hidden_size"),
        ("num_layers", "num_hidden_layers"),
        ("seq_len", "max_position_embeddings"),
        ("n_layer", "num_hidden_layers"),
        ("intermediate_size", "mlp_factor"),
        ("num_key_value_heads", "layer_options"),
    ],
)
def test_names_that_are_almost_fields(name: str, meant: str) -> None:
    """They went unnoticed, and the model had the default sizes."""
    with pytest.raises(ValueError, match=f"there is no field '{name}', it is '{meant}' here; there are vocab_size, "):
        RebasedConfig(**{name: 3})


def test_names_of_others_are_kept(tmp_path: Path) -> None:
    """What transformers and other libraries store with a configuration, or a user does."""
    others = {
        "_name_or_path": "somewhere",
        "architectures": ["RebasedForCausalLM"],
        "transformers_version": "5.0.0",
        "dtype": "float32",
        "attn_implementation": "eager",
        "pad_token_id": 3,
        "quantization_config": {"load_in_8bit": True},
        "id2label": {0: "no", 1: "yes"},
        "original_max_position_embeddings": 64,
        "unsloth_version": "1",
        "note": "mine",
    }
    config = small_config(**others)
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path, trust_remote_code=False)
    assert (loaded.note, loaded.pad_token_id, loaded.original_max_position_embeddings) == ("mine", 3, 64)
    assert RebasedConfig(**PretrainedConfig().to_dict() | {"model_type": "rebased"}).hidden_size == 768


def test_wrong_preset() -> None:
    with pytest.raises(ValueError, match="name='huge' is unknown; there are attention, based, rebased"):
        preset("huge")
    with pytest.raises(ValueError, match="two names of one thing"):
        preset("rebased", max_positions=8192, max_position_embeddings=2048)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gamma", "there is no field 'gamma'; it is an argument of 'rebased', for layer_options; there are vocab_size"),
        ("num_head", "there is no field 'num_head'; there are vocab_size"),
        ("hiden_size", "there is no field 'hiden_size', it is 'hidden_size' here"),
    ],
)
def test_presets_know_no_other_fields(name: str, said: str) -> None:
    """A configuration that is loaded may have them: others store things of their own."""
    with pytest.raises(ValueError, match=said):
        preset("rebased-small", **{name: 2})
    assert preset("rebased-small", pad_token_id=2).pad_token_id == 2


def test_presets_with_other_layers() -> None:
    fewer, more = (preset("rebased-small", num_hidden_layers=number) for number in (3, 5))
    assert fewer.mixers == ["short_conv", "rebased", "short_conv"]
    assert more.mixers == [*fewer.mixers, "rebased", "short_conv"]
    other = preset("attention-small", layer_types=["attention", "based", "based"])
    assert (other.num_hidden_layers, other.layer_options) == (3, {"attention": {"qkv_bias": False}})
    assert preset("attention-small", mixers=["based"]).layer_options == {}
    with pytest.raises(ValueError, match="layer_types has 1 entries, num_hidden_layers is 2"):
        preset("attention-small", layer_types=["based"], num_hidden_layers=2)


@pytest.mark.parametrize("options", [{"gamma": False}, ["gamma"], {"rebased": None}], ids=str)
def test_options_that_are_of_no_mixer(options: Any) -> None:
    with pytest.raises(ValueError, match=r"layer_options=.* must have the arguments of mixers by name"):
        RebasedConfig(layer_options=options)


def test_options_of_mixers_that_are_not_there() -> None:
    said = "layer_options has options of mamba, and the layers are short_conv, rebased"
    with pytest.raises(ValueError, match=said):
        small_config(layer_options={"mamba": {"state_dim": 4}})
    config = small_config("mamba", layer_options={"mamba": {"state_dim": 4}})
    config.layer_types = ["short_conv", "rebased"]
    with pytest.raises(ValueError, match=said):
        RebasedForCausalLM(config)


def test_wrong_tokens_and_lengths() -> None:
    model = small_model()
    with pytest.raises(ValueError, match=f"tokens from 3 to {VOCABULARY}; the vocabulary has 0 to {VOCABULARY - 1}"):
        model(torch.tensor([[3, VOCABULARY]]))
    with pytest.raises(ValueError, match="position reaches from 0 to 64"):
        model(some_tokens(1, 65))
    cache = model(some_tokens(1, 64), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="position"):
        model(some_tokens(1, 1), past_key_values=cache)
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        model()
    with pytest.raises(ValueError, match="attention_mask has 4 columns; there are 5 tokens, and 0 before them"):
        model(some_tokens(1, 5), attention_mask=torch.ones(1, 4))


def test_another_architecture_is_named(tmp_path: Path) -> None:
    small_config().save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"model_type": "llama", "auto_map": {}}))
    with pytest.raises(ValueError, match="of a 'llama' model, not of a 'rebased' one"):
        RebasedConfig.from_pretrained(tmp_path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    small_model(dtype=torch.float32).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(Exception, match=r"model\.safetensors|[Ii]ncomplete|invalid"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_config_round_trip(tmp_path: Path) -> None:
    config = small_config("mamba", "attention", layer_options={"mamba": {"state_dim": 4}})
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.to_model_config() == config.to_model_config()
    assert loaded.layer_types == ["mamba", "attention"]


def test_shapes_that_do_not_fit() -> None:
    model, tokens = small_model(), some_tokens(2, 9)
    with pytest.raises(ValueError, match=r"input_ids has shape \(9,\); it must be \(B, T\)"):
        model(tokens[0])
    with pytest.raises(ValueError, match=r"labels has shape \(2, 5\); it must be \(2, 9\), as input_ids"):
        model(tokens, labels=tokens[:, :5])


def test_packed_sequences_do_not_go_on_from_a_cache() -> None:
    model, tokens = small_model(), some_tokens(1, 6)
    cache = model(tokens, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="past_key_values must be empty"):
        model(tokens, past_key_values=cache, cu_seqlens=torch.tensor([0, 6]))
