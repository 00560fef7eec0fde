"""`generate` of the real library: every way must say what full forwards say."""

import pytest
import torch
from hf_cases import MIXER_NAMES, small_model, some_tokens
from torch import Tensor

from rebased.corpora.encoding import byte_tokenizer
from rebased.hf import RebasedCache, RebasedForCausalLM

EXACT = {"rtol": 1e-9, "atol": 1e-9}
GREEDY = {"do_sample": False, "pad_token_id": 0}


def by_full_forwards(model: RebasedForCausalLM, tokens: Tensor, count: int) -> Tensor:
    with torch.no_grad():
        for _ in range(count):
            following = model(tokens, use_cache=False).logits[:, -1:].argmax(dim=-1)
            tokens = torch.cat([tokens, following], dim=1)
    return tokens


@pytest.mark.parametrize("mixer", MIXER_NAMES)
def test_greedy_is_argmax_of_full_forwards(mixer: str) -> None:
    model, tokens = small_model("short_conv", mixer), some_tokens(3, 7)
    generated = model.generate(tokens, max_new_tokens=12, **GREEDY)
    assert torch.equal(generated, by_full_forwards(model, tokens, 12))


@pytest.mark.parametrize("mixer", MIXER_NAMES)
def test_left_padding_changes_nothing(mixer: str) -> None:
    model = small_model(mixer, "short_conv")
    tokens, lengths = some_tokens(3, 9), (4, 9, 6)
    mask = torch.stack([torch.arange(9) >= 9 - length for length in lengths]).long()
    generated = model.generate(tokens * mask, attention_mask=mask, max_new_tokens=8, **GREEDY)
    for row, length in enumerate(lengths):
        alone = by_full_forwards(model, tokens[row : row + 1, 9 - length :], 8)
        assert torch.equal(generated[row, 9:], alone[0, length:])


@pytest.mark.parametrize("mixer", MIXER_NAMES)
def test_prefill_in_pieces_and_steps_equal_the_full_pass(mixer: str) -> None:
    model, tokens = small_model("short_conv", mixer), some_tokens(2, 21)
    with torch.no_grad():
        whole = model(tokens, use_cache=False).logits
        cache, pieces = None, []
        for piece in tokens.split([8, 5, 1, 1, 6], dim=1):
            out = model(piece, past_key_values=cache, use_cache=True)
            cache, pieces = out.past_key_values, [*pieces, out.logits]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, **EXACT)
    assert cache.get_seq_length() == 21


def test_going_on_from_a_cache() -> None:
    model, tokens = small_model("short_conv", "rebased", "attention"), some_tokens(2, 6)
    first = model.generate(tokens, max_new_tokens=5, return_dict_in_generate=True, **GREEDY)
    assert isinstance(first.past_key_values, RebasedCache)
    again = model.generate(first.sequences, past_key_values=first.past_key_values, max_new_tokens=5, **GREEDY)
    assert torch.equal(again, by_full_forwards(model, tokens, 10))


@pytest.mark.parametrize("mixer", ["rebased", "attention", "mamba"])
def test_beams_equal_those_without_a_cache(mixer: str) -> None:
    model, tokens = small_model("short_conv", mixer), some_tokens(2, 5)
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 7, **GREEDY}
    with_cache, without = (model.generate(tokens, use_cache=use_cache, **options) for use_cache in (True, False))
    assert torch.equal(with_cache, without)


def test_sampling_is_repeatable_and_in_the_vocabulary() -> None:
    model, tokens = small_model(), some_tokens(2, 5)
    drawn = []
    for _ in range(2):
        torch.manual_seed(1)
        drawn.append(model.generate(tokens, do_sample=True, top_k=20, max_new_tokens=20, pad_token_id=0))
    assert torch.equal(*drawn)
    assert drawn[0].max() < model.config.vocab_size
    assert len(drawn[0][:, 5:].unique()) > 5


def test_the_cache_of_kernel_layers_does_not_grow() -> None:
    sizes = {}
    for layers in (("short_conv", "rebased"), ("short_conv", "attention")):
        model, caches = small_model(*layers), []
        for length in (8, 32):
            caches.append(model(some_tokens(1, length), use_cache=True).past_key_values.nbytes)
        sizes[layers[1]] = caches
    assert sizes["rebased"][0] == sizes["rebased"][1]
    assert sizes["attention"][0] < sizes["attention"][1]


def test_a_cache_is_chosen_from_repeated_and_emptied() -> None:
    model, tokens = small_model("short_conv", "rebased", "attention"), some_tokens(2, 6)
    cache = model(tokens, use_cache=True).past_key_values
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0]))
    following = some_tokens(2, 1, seed=1)
    actual = model(following, past_key_values=cache).logits
    expected = model(torch.cat([tokens[[1, 0]], following], dim=1)).logits[:, -1:]
    torch.testing.assert_close(actual, expected, **EXACT)
    assert "3 layers, 7 tokens" in repr(cache)
    assert not cache.is_croppable
    with pytest.raises(ValueError, match="cannot be shortened"):
        cache.crop(-1)
    cache.reset()
    torch.testing.assert_close(model(tokens, past_key_values=cache).logits, model(tokens).logits, **EXACT)


def test_speculation_is_refused() -> None:
    """A state cannot forget the tokens that were refused."""
    model = small_model()
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        model.generate(some_tokens(1, 4), assistant_model=model, max_new_tokens=3, **GREEDY)


def test_prompts_padded_on_the_right_are_refused() -> None:
    """What is generated would follow the padding."""
    model, tokens = small_model(), some_tokens(2, 6)
    mask = torch.ones_like(tokens)
    mask[1, 4:] = 0
    with pytest.raises(ValueError, match="pad prompts on the left"):
        model.generate(tokens, attention_mask=mask, max_new_tokens=2, pad_token_id=0)


@pytest.mark.parametrize(
    ("prompt", "lengths", "message"),
    [
        ("tokens", {"max_new_tokens": 56}, "max_new_tokens=56 after a prompt of 10 tokens need 65 positions"),
        ("embeddings", {"max_new_tokens": 56}, "max_new_tokens=56 after a prompt of 10 tokens need 65 positions"),
        ("padded", {"max_new_tokens": 58}, "max_new_tokens=58 after a prompt of 8 tokens need 65 positions"),
        ("tokens", {"max_length": 66}, "max_length=66 needs 65 positions"),
    ],
    ids=["tokens", "embeddings", "padded", "max_length"],
)
@pytest.mark.parametrize("use_cache", [True, False])
def test_more_than_there_are_positions_is_refused_before_the_first_token(
    prompt: str, lengths: dict[str, int], message: str, use_cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed at the last of them."""
    model, tokens = small_model(), some_tokens(2, 10)
    inputs = {
        "tokens": {"input_ids": tokens},
        "embeddings": {"inputs_embeds": model.get_input_embeddings()(tokens).detach()},
        "padded": {"input_ids": tokens, "attention_mask": torch.tensor([[0, 0] + [1] * 8, [0] * 5 + [1] * 5])},
    }[prompt]
    options = {"use_cache": use_cache, **GREEDY}
    fitting = {name: length - 1 for name, length in lengths.items()}
    expected = 65 if "max_length" in lengths else fitting["max_new_tokens"] + 10 * (prompt != "embeddings")
    assert model.generate(**inputs, **fitting, **options).shape[1] == expected
    monkeypatch.setattr(model.model, "forward", lambda *_, **__: pytest.fail("a token was computed"))
    with pytest.raises(ValueError, match=f"{message}, more than the model's 64"):
        model.generate(**inputs, **lengths, **options)


def test_without_a_limit_any_length_is_generated() -> None:
    model, tokens = small_model(position_embedding_type="none"), some_tokens(1, 10)
    assert model.generate(tokens, max_new_tokens=60, **GREEDY).shape[1] == 70


def test_the_byte_tokenizer_pads_on_the_left() -> None:
    batch = byte_tokenizer()(["abc", "d"], return_tensors="pt", padding=True)
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
