"""Other people's programs, with our models: Trainer, PEFT, pipelines, the evaluation harness."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_cases import small_config, small_model, some_tokens
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments, pipeline

from rebased.hf import RebasedForCausalLM

TEXT = "the cat sat on the mat and the dog sat on the log"
CHARACTERS = sorted({*TEXT, "▁", " "})


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each character, 0 for padding and 1 for the end."""
    vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {x: i for i, x in enumerate(CHARACTERS, start=3)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    small_model("short_conv", "rebased", "short_conv", "attention", dtype=torch.float32).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


class Sequences(torch.utils.data.Dataset[dict[str, Any]]):
    """The same few tokens again and again: a loss that can fall."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = some_tokens(1, 12, seed=index % 4)[0]
        return {"input_ids": tokens, "labels": tokens}


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=30,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=15,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


REENTRANT = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_checkpointing": True}, REENTRANT],
    ids=["plain", "gradient checkpointing", "reentrant checkpointing"],
)
def test_trainer(options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = RebasedForCausalLM(small_config())
    trainer = Trainer(model=model, args=arguments(tmp_path, **options), train_dataset=Sequences())
    trainer.train()
    found = losses(trainer)
    assert found[-1] < 0.5 * found[0]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-30")
    tokens = some_tokens(1, 12)
    torch.testing.assert_close(loaded(tokens).logits, model.eval()(tokens).logits)


def test_label_smoothing_is_of_the_next_token(tmp_path: Path) -> None:
    """Trainer then computes the loss itself, and shifts labels only of models it knows to need that."""
    torch.manual_seed(0)
    model = RebasedForCausalLM(small_config())
    trainer = Trainer(
        model=model, args=arguments(tmp_path, label_smoothing_factor=0.1), train_dataset=Sequences(), eval_dataset=None
    )
    trainer.train()
    tokens = torch.stack([Sequences()[index]["input_ids"] for index in range(4)])
    predicted = model.eval()(tokens).logits.argmax(dim=-1)
    assert (predicted[:, :-1] == tokens[:, 1:]).float().mean() > 0.5
    assert (predicted == tokens).float().mean() < 0.2


def test_noise_in_the_embeddings(tmp_path: Path) -> None:
    """Trainer adds it by a hook, which a lookup past the module would not call."""
    found = []
    for alpha in (None, 50.0):
        torch.manual_seed(0)
        options = arguments(tmp_path, neftune_noise_alpha=alpha)
        trainer = Trainer(model=RebasedForCausalLM(small_config()), args=options, train_dataset=Sequences())
        trainer.train()
        found.append(losses(trainer)[0])
    assert abs(found[1] - found[0]) > 1e-3


def test_inputs_can_be_made_to_require_gradients() -> None:
    model = small_model(dtype=torch.float32).requires_grad_(False)
    model.enable_input_require_grads()
    assert model(some_tokens(2, 9)).logits.requires_grad


def test_trainer_evaluates(tmp_path: Path) -> None:
    options = arguments(tmp_path, eval_strategy="steps", eval_steps=15)
    model = RebasedForCausalLM(small_config())
    trainer = Trainer(model=model, args=options, train_dataset=Sequences(), eval_dataset=Sequences())
    trainer.train()
    found = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(found) == 2
    assert found[1] < found[0]


def test_trainer_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    found = []
    for start in (None, str(tmp_path / "checkpoint-15")):
        torch.manual_seed(0)
        trainer = Trainer(model=RebasedForCausalLM(small_config()), args=arguments(tmp_path), train_dataset=Sequences())
        trainer.train(resume_from_checkpoint=start)
        found.append(losses(trainer)[-1])
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_gradient_accumulation_is_the_larger_batch(tmp_path: Path) -> None:
    found = []
    for size, steps in ((8, 1), (4, 2)):
        torch.manual_seed(0)
        options = arguments(tmp_path / str(size))
        options.per_device_train_batch_size, options.gradient_accumulation_steps = size, steps
        options.max_steps = 10
        trainer = Trainer(model=RebasedForCausalLM(small_config()), args=options, train_dataset=Sequences())
        trainer.train()
        found.append(losses(trainer))
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_lora_of_the_embeddings() -> None:
    from peft import LoraConfig, get_peft_model

    model, tokens = small_model(dtype=torch.float32), some_tokens(2, 9)
    before = model(tokens).logits
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["embedding"]))
    torch.testing.assert_close(adapted(input_ids=tokens).logits, before)
    adapted(input_ids=tokens, labels=tokens).loss.backward()
    grads = {name: x.grad for name, x in adapted.named_parameters() if x.requires_grad}
    assert len(grads) == 2
    assert any(grad is not None and grad.any() for grad in grads.values())


def test_lora() -> None:
    from peft import LoraConfig, get_peft_model

    model, tokens = small_model("short_conv", "rebased", "attention", dtype=torch.float32), some_tokens(2, 9)
    before = model(tokens).logits
    targets = ["q_proj", "v_proj", "o_proj"]
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=targets))
    assert torch.equal(adapted(input_ids=tokens).logits, before)
    optimizer = torch.optim.AdamW(adapted.parameters(), lr=1e-2)
    found = []
    for _ in range(20):
        loss = adapted(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    assert found[-1] < found[0]
    trained = [name for name, x in adapted.named_parameters() if x.grad is not None]
    assert trained
    assert all("lora_" in name for name in trained)
    expected = adapted.eval()(input_ids=tokens).logits
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(merged(tokens).logits, expected, rtol=1e-4, atol=1e-4)
    assert merged.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0).shape == (2, 12)


def test_text_generation_pipeline(saved: Path) -> None:
    generate = pipeline("text-generation", model=str(saved), device="cpu")
    prompts = ["the cat", "the dog sat on"]
    together = generate(prompts, max_new_tokens=6, do_sample=False, batch_size=2)
    alone = [generate(prompt, max_new_tokens=6, do_sample=False) for prompt in prompts]
    assert [each[0]["generated_text"] for each in together] == [each[0]["generated_text"] for each in alone]
    assert together[1][0]["generated_text"].startswith("the dog sat on")


def test_evaluation_harness(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A multiple-choice task of our own through lm_eval's stock `hf` model: it chooses the likelier text."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    rows = [{"question": "the cat", "choices": [" sat", " dog"], "answer": 0}] * 3
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "choose",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    (tmp_path / "choose.yaml").write_text(json.dumps(task))  # JSON is YAML
    harness = HFLM(pretrained=str(saved), device="cpu", dtype="float32", batch_size=1)
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    found = lm_eval.simple_evaluate(model=harness, tasks=["choose"], task_manager=manager, bootstrap_iters=0)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(saved), make_tokenizer()

    @torch.no_grad()
    def likelihood(text: str) -> float:
        start, tokens = len("the cat"), torch.tensor([tokenizer(text)["input_ids"]])
        chances = model(tokens).logits.log_softmax(dim=-1)[0, :-1].gather(1, tokens[0, 1:, None])
        return float(chances[start - 1 :].sum())

    expected = float(likelihood("the cat sat") > likelihood("the cat dog"))
    assert found["results"]["choose"]["acc,none"] == expected


def test_on_a_device_map(saved: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved, device_map="cpu", dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    out = model.generate(some_tokens(1, 4), max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert out.shape == (1, 7)
