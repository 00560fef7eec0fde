"""The loss without the logits: what it is, that there are none, and that training does not notice."""

from typing import Any

import pytest
import torch
from hf_cases import VOCABULARY, small_config, small_model, some_tokens
from torch import Tensor

from rebased.hf import RebasedConfig, RebasedForCausalLM
from rebased.hf.fused_loss import fused_causal_loss


def labels_with_gaps() -> Tensor:
    """None at the start of one row, in the middle of another."""
    labels = some_tokens(3, 13)
    labels[0, :4] = labels[2, 6:9] = -100
    return labels


def both_models(dtype: torch.dtype = torch.float64) -> list[RebasedForCausalLM]:
    """The same weights, without and with the fused loss, in training."""
    return [small_model(fused_loss=fused, dtype=dtype).train() for fused in (False, True)]


def loss_and_gradients(model: Any, **arguments: Any) -> dict[str, Tensor]:
    model.zero_grad()
    out = model(some_tokens(3, 13), **arguments)
    out.loss.backward()
    return {"loss": out.loss.detach()} | {name: x.grad.clone() for name, x in model.named_parameters()}


@pytest.mark.parametrize(
    "options",
    [{}, {"num_items_in_batch": 7}, {"num_items_in_batch": torch.tensor(7)}, {"shift_labels": some_tokens(3, 13, 5)}],
    ids=["mean", "a number of items", "the number as a tensor", "shifted already"],
)
def test_same_loss_and_gradients(options: dict[str, Any]) -> None:
    plain, fused = (loss_and_gradients(model, labels=labels_with_gaps(), **options) for model in both_models())
    assert plain.keys() == fused.keys()
    for name, expected in plain.items():
        # The ordinary loss rounds logits to float32.
        torch.testing.assert_close(fused[name], expected.to(fused[name].dtype), rtol=1e-5, atol=1e-7)


def test_items_are_honoured() -> None:
    """A sum over the given number: half as many items, twice the loss; gaps count for nothing."""
    fused = both_models()[1]
    losses = [fused(some_tokens(3, 13), labels=labels_with_gaps(), num_items_in_batch=n).loss.item() for n in (8, 4)]
    assert losses[1] == pytest.approx(2 * losses[0])
    labels = labels_with_gaps()
    mean = fused(some_tokens(3, 13), labels=labels).loss.item()
    assert losses[0] * 8 == pytest.approx(mean * int((labels[:, 1:] != -100).sum()))


def test_only_training_with_labels_goes_without_logits() -> None:
    plain, fused = both_models()
    tokens = some_tokens(2, 9)
    assert fused(tokens, labels=tokens).logits is None
    assert fused(tokens, labels=tokens, return_dict=False)[0].shape == ()
    assert fused(tokens).logits.shape == (2, 9, VOCABULARY)
    evaluated = fused.eval()(tokens, labels=tokens)
    assert evaluated.logits.shape == (2, 9, VOCABULARY)
    assert torch.equal(evaluated.loss, plain.eval()(tokens, labels=tokens).loss)


def test_the_logits_are_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = both_models()[1]
    monkeypatch.setattr(fused.lm_head, "forward", None)
    assert fused(some_tokens(2, 9), labels=some_tokens(2, 9)).loss.isfinite()


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_an_adapted_head_is_used_as_it_is() -> None:
    from peft import LoraConfig, get_peft_model

    model = both_models()[1]
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["lm_head"])).train()
    assert adapted(input_ids=some_tokens(2, 9), labels=some_tokens(2, 9)).logits is not None


@pytest.mark.usefixtures("_forget_compilations")
def test_a_head_with_hooks_is_called() -> None:
    plain, fused = both_models()
    for model in (plain, fused):
        model.lm_head.register_forward_hook(lambda module, inputs, logits: logits / 2)
    tokens = some_tokens(3, 13)
    losses = [model(tokens, labels=tokens).loss for model in (plain, fused)]
    torch.testing.assert_close(*losses)
    assert fused(tokens, labels=tokens).logits is not None


def test_compiled_in_one_graph() -> None:
    model = both_models(torch.float32)[1]
    expected = loss_and_gradients(model, labels=labels_with_gaps())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = loss_and_gradients(compiled, labels=labels_with_gaps())
    for name, value in expected.items():
        torch.testing.assert_close(found.get(name, found.get(f"_orig_mod.{name}")), value, rtol=1e-5, atol=1e-7)


def test_under_autocast() -> None:
    plain, fused = both_models(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        losses = [model(some_tokens(3, 13), labels=labels_with_gaps()).loss for model in (plain, fused)]
    assert losses[1].dtype == torch.float32
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=2e-2)


def test_labels_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"labels has shape \(2, 8\); it must be \(2, 9\)"):
        fused_causal_loss(torch.ones(2, 9, 4), torch.ones(5, 4), torch.zeros(2, 8, dtype=torch.int64))


def test_it_is_a_field_that_is_saved() -> None:
    assert RebasedConfig().fused_loss is False
    assert RebasedConfig.from_dict(small_config(fused_loss=True).to_dict()).fused_loss is True
