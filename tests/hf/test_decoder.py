"""Recorded steps, with a recorder that runs on a CPU: the same tokens, the same state."""

from collections.abc import Callable

import pytest
import torch
from hf_cases import MIXER_NAMES, small_model, some_tokens

from rebased.hf.decoder import Decoder, has_constant_state

EXACT = {"rtol": 1e-9, "atol": 1e-9}
CONSTANT = [name for name in MIXER_NAMES if name not in ("attention", "hyena")]


def record(run: Callable[[], None], _: torch.device) -> Callable[[], None]:
    run()  # as a graph does before it is recorded
    return run


@pytest.mark.parametrize("mixer", CONSTANT)
def test_steps_equal_ordinary_ones(mixer: str) -> None:
    model, tokens = small_model("short_conv", mixer), some_tokens(2, 12)
    body = model.model.backbone
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
        _, state = body.features(tokens[:, :6], state=body.init_state(2))
        decoder = Decoder(body, model.lm_head, state, record)
        for t in range(6, 12):
            logits = decoder.step(tokens[:, t : t + 1], state)
            torch.testing.assert_close(logits, expected[:, t : t + 1], **EXACT)
            state = decoder.state
            if t == 8:  # a beam search puts others in their places
                state = state.reorder(torch.tensor([0, 1]))


def test_caches_take_turns() -> None:
    """What one goes on from is not lost when another's steps are made."""
    model, tokens = small_model(), some_tokens(1, 12)
    body = model.model.backbone
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
        caches = [model(tokens[:, :6], use_cache=True).past_key_values for _ in range(2)]
        decoder = Decoder(body, model.lm_head, caches[0].state, record)
        for t in range(6, 12):
            for cache in caches:
                decoder.belong_to(cache)
                logits = decoder.step(tokens[:, t : t + 1], cache.state)
                cache.state = decoder.state
                torch.testing.assert_close(logits, expected[:, t : t + 1], **EXACT)


def test_which_states_are_constant() -> None:
    found = {mixer: has_constant_state(small_model("short_conv", mixer).model.backbone) for mixer in MIXER_NAMES}
    assert [mixer for mixer, constant in found.items() if not constant] == ["attention", "hyena"]


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", CONSTANT)
def test_generation_on_a_gpu(mixer: str) -> None:
    """Greedy generation by graphs equals that of full forwards, also when a second batch follows."""
    model = small_model("short_conv", mixer, dtype=torch.float32).cuda()
    for seed in (0, 1):
        tokens = some_tokens(3, 7, seed=seed).cuda()
        generated = model.generate(tokens, max_new_tokens=20, do_sample=False, pad_token_id=0)
        with torch.no_grad():
            for _ in range(20):
                following = model(tokens, use_cache=False).logits[:, -1:].argmax(dim=-1)
                tokens = torch.cat([tokens, following], dim=1)
        assert torch.equal(generated, tokens)


@pytest.mark.gpu
def test_beams_on_a_gpu() -> None:
    model, tokens = small_model(dtype=torch.float32).cuda(), some_tokens(2, 5).cuda()
    options = {"num_beams": 3, "max_new_tokens": 15, "do_sample": False, "pad_token_id": 0}
    with_cache, without = (model.generate(tokens, use_cache=use_cache, **options) for use_cache in (True, False))
    assert torch.equal(with_cache, without)
