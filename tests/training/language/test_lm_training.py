"""Training of a small language model: what it learns, what it writes, what it refuses."""

import errno
import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_cases import STEPS, corpus, history, lines, small_options, small_run, train_small
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer
from typer.testing import CliRunner

from rebased.cli.app import app
from rebased.corpora import prepare
from rebased.hf import RebasedForCausalLM
from rebased.models.block import Block
from rebased.training.language.config import LanguageRunConfig
from rebased.training.language.folder import add_error
from rebased.training.language.layout import current_processes, make_layout
from rebased.training.language.metrics import StepRecord
from rebased.training.language.model_config import make_model_config
from rebased.training.language.optimizer import decayed, learning_rate_factor
from rebased.training.language.train import PartMade, TrainingStarted, train
from rebased.training.language.trainer import LanguageTrainer, training_arguments


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    train_small(out, eval_every=4, board=True, micro_batch=2)
    return out


# ---- What a run leaves behind ----


def test_the_loss_falls(finished: Path) -> None:
    found = [line["loss"] for line in lines(finished)]
    assert found[0] == pytest.approx(math.log(320), rel=0.1)  # 257 tokens, padded: it knows nothing yet
    assert found[-1] < 0.75 * found[0]


def test_every_step_has_a_line(finished: Path) -> None:
    found = lines(finished)
    assert [line["step"] for line in found] == list(range(1, STEPS + 1))
    assert [line["tokens"] for line in found] == [4 * 32 * step for step in range(1, STEPS + 1)]
    assert [line["step"] for line in found if "validation_loss" in line] == [4, 8, 12]
    assert all(line["grad_norm"] > 0 and line["tokens_per_second"] > 0 for line in found)
    assert all("mfu" not in line for line in found)  # of a device whose peak nobody knows


def test_the_schedule(finished: Path) -> None:
    found = [line["learning_rate"] for line in lines(finished)]
    assert found[:4] == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2, 1e-2])
    assert found[3:] == sorted(found[3:], reverse=True)
    assert found[-1] == pytest.approx(1e-3)


def test_the_model_loads_and_generates(finished: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(finished)
    tokenizer = AutoTokenizer.from_pretrained(finished)
    assert (model.config.fused_loss, model.config.use_cache, model.config.vocab_size) == (False, True, 320)
    tokens = tokenizer("sat on the mat", return_tensors="pt").input_ids
    assert model(tokens, labels=tokens).loss.item() < math.log(320)
    result = CliRunner().invoke(
        app, ["lm", "generate", str(finished), "sat", "--max-new-tokens", "3", "--device", "cpu"]
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("sat")


def test_validation_loss_is_the_models(finished: Path) -> None:
    """The last line's, computed anew from the saved weights: the mean over all tokens but windows' first ones.

    Of 64 windows, spread over all there are.
    """
    from rebased.corpora import Windows

    windows = Windows(corpus().split("validation"), 32)
    assert len(windows) > 64
    tokens = torch.stack([windows[index * len(windows) // 64]["input_ids"] for index in range(64)])
    model = AutoModelForCausalLM.from_pretrained(finished)
    with torch.no_grad():
        expected = model(tokens, labels=tokens).loss.item()
    assert lines(finished)[-1]["validation_loss"] == pytest.approx(expected, rel=1e-5)


def test_training_json(finished: Path) -> None:
    facts = json.loads((finished / "training.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(finished)
    assert (facts["model"], facts["seed"], facts["corpus"]) == ("rebased-small", 0, "corpus")
    assert facts["tokens"] == STEPS * 4 * 32
    assert facts["parameters"] == sum(x.numel() for x in model.parameters())
    assert facts["loss"] == lines(finished)[-1]["loss"]
    assert facts["validation_loss"] == lines(finished)[-1]["validation_loss"]
    assert facts["config"]["learning_rate"] == 1e-2
    assert facts["config"]["corpus"]["tokenizer"] == facts["tokenizer"] == corpus().tokenizer_hash
    assert facts["environment"]["torch"] == str(torch.__version__)
    assert LanguageRunConfig(**{k: v for k, v in facts["config"].items() if k != "corpus"}) == small_run()


def test_a_checkpoint_is_a_model_with_its_facts(finished: Path) -> None:
    checkpoint = finished / "checkpoints" / "checkpoint-10"
    assert json.loads((checkpoint / "training.json").read_text())["tokens"] == 10 * 4 * 32
    assert len(AutoTokenizer.from_pretrained(checkpoint)) == corpus().vocab_size
    AutoModelForCausalLM.from_pretrained(checkpoint)


def test_tensorboard_has_it(finished: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished / "tb"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, STEPS + 1))
    assert events.Scalars("loss")[-1].value == pytest.approx(lines(finished)[-1]["loss"])


def test_nothing_else_is_left(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} == {
        ".lock",
        "checkpoints",
        "config.json",
        "generation_config.json",
        "metrics.jsonl",
        "model.safetensors",
        "modeling_rebased.py",
        "run.json",
        "tb",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
    }
    modes = {path.stat().st_mode for path in finished.iterdir() if path.is_file()}
    assert len(modes) == 1


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # the compiler asks
def test_layers_are_compiled_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each, and not on a CPU unless asked; a quicker compiler than the usual one gives the same losses."""
    compiled: list[Block] = []

    def compile_block(block: Block) -> None:
        compiled.append(block)
        torch.nn.Module.compile(block, backend="aot_eager")

    monkeypatch.setattr(Block, "compile", compile_block)
    train_small(tmp_path / "plain", small_run(steps=4))
    assert not compiled
    train_small(tmp_path / "compiled", small_run(steps=4), compile=True)
    assert len(compiled) == 2
    plain, found = ([line["loss"] for line in lines(tmp_path / name)] for name in ("plain", "compiled"))
    assert found == pytest.approx(plain, rel=1e-5)


# ---- What does not change losses ----


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in lines(out)]


def test_micro_batches_are_the_larger_batch(tmp_path: Path) -> None:
    for micro_batch in (1, 4):
        train_small(tmp_path / str(micro_batch), micro_batch=micro_batch)
    assert losses(tmp_path / "1") == pytest.approx(losses(tmp_path / "4"), rel=2e-6)


def test_parts_of_a_step_are_told_of_before_it(tmp_path: Path) -> None:
    """All but the last, which ends the step."""
    events: list[Any] = []
    config = small_run(steps=2, warmup_steps=1)
    train(config, corpus(), tmp_path, small_options(micro_batch=1), report=events.append)
    told = [event if isinstance(event, PartMade) else type(event) for event in events]
    parts = [[PartMade(step, part) for part in (1, 2, 3)] for step in (1, 2)]
    assert told == [TrainingStarted, *parts[0], StepRecord, *parts[1], StepRecord]


def test_neither_the_fused_loss_nor_checkpointing_shows(tmp_path: Path) -> None:
    train_small(tmp_path / "fused")
    train_small(tmp_path / "plain", fused_loss=False, gradient_checkpointing=True, eval_every=1, checkpoint_every=1)
    assert losses(tmp_path / "fused") == pytest.approx(losses(tmp_path / "plain"), rel=2e-6)


def test_documents_apart(tmp_path: Path) -> None:
    """Micro-batches of packed documents too are the larger batch, though their numbers of tokens differ."""
    for micro_batch in (1, 4):
        train_small(tmp_path / str(micro_batch), small_run(crossing=False), micro_batch=micro_batch)
    assert losses(tmp_path / "1") == pytest.approx(losses(tmp_path / "4"), rel=2e-6)
    assert losses(tmp_path / "1")[-1] < 0.75 * losses(tmp_path / "1")[0]
    assert lines(tmp_path / "1")[-1]["validation_loss"] == pytest.approx(
        lines(tmp_path / "4")[-1]["validation_loss"], rel=2e-6
    )


def test_seeds_differ(tmp_path: Path) -> None:
    for seed in (0, 1):
        train_small(tmp_path / str(seed), small_run(seed=seed, steps=2, warmup_steps=1))
    assert losses(tmp_path / "0") != losses(tmp_path / "1")


def test_bfloat16(tmp_path: Path) -> None:
    train_small(tmp_path, small_run(dtype="bfloat16"))
    assert losses(tmp_path)[-1] < 0.75 * losses(tmp_path)[0]
    weights = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert weights.dtype == torch.float32


# ---- The optimizer ----


def test_what_decays() -> None:
    config = make_model_config(small_run(model="rebased-small"), vocab_size=257)
    model = RebasedForCausalLM(config)
    kept = {name for name, _ in model.named_parameters()} - set(decayed(model))
    shapes = {name: x.ndim for name, x in model.named_parameters()}
    assert {name for name in shapes if any(part in name for part in ("bias", "norm", "gammas", "betas"))} <= kept
    assert {name.rpartition(".")[2] for name in decayed(model)} == {"weight"}
    assert "model.backbone.embedding.weight" in decayed(model)
    assert all(shapes[name] == 1 for name in kept)


def test_the_optimizer_is_what_was_asked_for(tmp_path: Path) -> None:
    asked = {"weight_decay": 0.3, "beta1": 0.8, "beta2": 0.7, "clip": 0.5, "learning_rate": 0.06}
    config = small_run(**asked)
    layout, processes = make_layout(4, 2, seq_len=32, num_processes=1, device="cpu"), current_processes()
    arguments = training_arguments(config, small_options(), layout, processes, folder=tmp_path, device="cpu")
    model = RebasedForCausalLM(make_model_config(config, vocab_size=257))
    trainer = LanguageTrainer(config, keep=1, model=model, args=arguments)
    optimizer = trainer.create_optimizer()
    trainer.create_scheduler(config.steps)
    decaying, still = optimizer.param_groups
    assert (decaying["weight_decay"], still["weight_decay"]) == (0.3, 0.0)
    assert {id(x) for x in decaying["params"]} == {id(model.get_parameter(name)) for name in decayed(model)}
    assert len(decaying["params"]) + len(still["params"]) == len(list(model.parameters()))
    assert decaying["betas"] == (0.8, 0.7)
    assert decaying["lr"] == pytest.approx(0.02)  # the first of three steps of warm-up
    assert isinstance(optimizer, torch.optim.AdamW)
    assert arguments.max_grad_norm == 0.5


def test_the_paper_s_schedule() -> None:
    config = LanguageRunConfig()
    assert [learning_rate_factor(config, step) for step in (0, 99, 199, 200)] == [1 / 200, 0.5, 1.0, 1.0]
    assert learning_rate_factor(config, 19_999) == pytest.approx(0.1)
    assert learning_rate_factor(LanguageRunConfig(final_fraction=0.25), 19_999) == pytest.approx(0.25)
    assert learning_rate_factor(config, (200 + 19_999) // 2) == pytest.approx(0.55, abs=1e-3)


# ---- What is refused, before any work ----


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"model": "transformer"}, {}, "model='transformer' is no preset; there are attention"),
        ({"changes": {"hiden_size": 3}}, {}, "there is no field 'hiden_size', it is 'hidden_size' here"),
        (
            {"changes": {"layer_types": 5}},
            {},
            "changes={'layer_types': 5} cannot be made to the preset: 'int' object is",
        ),
        (
            {"changes": {"layer_types": ["hyena"], "num_hidden_layers": 1, "layer_options": {"hyena": {"order": "x"}}}},
            {},
            "the model cannot be built: order is 'x'; it must be an integer",
        ),
        ({"changes": {"max_position_embeddings": 16}}, {}, "seq_len=32 is more than max_position_embeddings=16"),
        ({"changes": {"vocab_size": 64}}, {}, "vocab_size=64 is less than the corpus's 257"),
        ({}, {"micro_batch": 3}, "micro_batch=3 must divide the sequences of a process in a step, 4"),
        ({"batch_size": 10_000}, {}, "less than one batch of batch_size=10000"),
        ({"seq_len": 10**6}, {}, r"train has \d+ tokens, no window of length=1000000"),
        ({}, {"device": "tpu"}, "device='tpu' is unknown"),
        ({}, {"fsdp": True}, "fsdp=True needs CUDA devices"),
        ({"crossing": False}, {"compile": True}, "compile=True does not go with crossing=False"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:30],
)
def test_bad_runs(changes: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(ValueError, match=message):
        train(small_run(**changes), corpus(), out, small_options(**options))
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"seq_len": 1}, "leaves nothing to predict"),
        ({"warmup_steps": 12}, "warmup_steps=12 must be less than steps=12"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be positive and finite"),
        ({"clip": math.nan}, "clip=nan must be finite"),
        ({"beta2": 1.0}, "beta2=1.0 must be from 0 to below 1"),
        (
            {"final_fraction": 2.0},
            "final_fraction=2.0 must be from 0 to 1, the share of learning_rate that is left",
        ),
        ({"changes": {"fused_loss": False}}, "fused_loss=False does not belong to changes: .* or --no-fused-loss"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
        ({"seed": 2**32}, r"seed=4294967296 must be less than 2\*\*32"),
        ({"dtype": "fp16"}, "dtype='fp16' is unknown; it may be 'bfloat16', 'float32'"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:30],
)
def test_bad_configurations(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_run(**changes)


def test_a_model_from_elsewhere_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is neither empty nor a run: there is no run.json; choose another folder"):
        train_small(tmp_path)
    assert (tmp_path / "config.json").read_text() == "{}"


def test_what_is_in_a_folder_stays_alone_there(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("text")
    with pytest.raises(ValueError, match=r"is neither empty nor a run: there is no run.json; choose another folder"):
        train_small(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["book.txt"]


def test_a_run_killed_at_its_first_file_begins_anew(tmp_path: Path) -> None:
    for name in (".lock", ".run.json.partial"):
        (tmp_path / name).touch()
    train_small(tmp_path)
    assert (tmp_path / "training.json").exists()


@pytest.mark.parametrize("crossing", [True, False])
@pytest.mark.parametrize("held_out", [None, "short"], ids=["nothing held out", "less than a sequence held out"])
def test_training_needs_no_validation(held_out: str | None, crossing: bool, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 200)
    (tmp_path / "held_out.txt").write_text(held_out or "")
    validation = [tmp_path / "held_out.txt"] if held_out else 0.0
    text = prepare([tmp_path / "text.txt"], tmp_path / "corpus", validation=validation)
    config = small_run(steps=1, warmup_steps=0, batch_size=1, crossing=crossing)
    facts = train(config, text, tmp_path / "run", small_options())
    assert (facts["validation_loss"] is None) == (crossing or not held_out)


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError, match=r"the loss of step \d+ is nan"):
        train_small(tmp_path, small_run(learning_rate=1e30, clip=0.0))
    assert not (tmp_path / "training.json").exists()
    assert all(math.isfinite(line["loss"]) for line in lines(tmp_path))


def test_weights_that_are_not_finite_are_no_model(tmp_path: Path) -> None:
    """The loss of the only step was that of the weights before it."""
    with pytest.raises(FloatingPointError, match="weights after step 1 are not finite; try a lower learning rate"):
        train_small(tmp_path, small_run(steps=1, warmup_steps=0, learning_rate=1e39))
    assert not (tmp_path / "training.json").exists()
    assert not (tmp_path / "model.safetensors").exists()
    assert list((tmp_path / "checkpoints").iterdir()) == []


# ---- Sizes ----


def test_models_are_made_to_fit() -> None:
    config = make_model_config(LanguageRunConfig(seq_len=8192), vocab_size=50277)
    assert (config.vocab_size, config.max_position_embeddings) == (50304, 8192)
    assert make_model_config(LanguageRunConfig(seq_len=512), vocab_size=50277).max_position_embeddings == 4096
    deep = make_model_config(LanguageRunConfig(changes={"num_hidden_layers": 5}), vocab_size=64)
    assert deep.mixers == ["short_conv", "rebased", "short_conv", "rebased", "short_conv"]
    assert deep.vocab_size == 64


def test_layouts() -> None:
    whole = make_layout(1024, None, seq_len=4096, num_processes=8, device="cuda")
    assert (whole.micro_batch, whole.accumulation) == (8, 16)
    odd = make_layout(21, None, seq_len=8192, num_processes=1, device="cuda")
    assert (odd.micro_batch, odd.accumulation) == (3, 7)
    on_a_cpu = make_layout(1024, None, seq_len=4096, num_processes=1, device="cpu")
    assert (on_a_cpu.micro_batch, on_a_cpu.accumulation) == (1, 1024)
    with pytest.raises(ValueError, match="batch_size=10 must be divisible by the number of processes, 4"):
        make_layout(10, None, seq_len=8, num_processes=4, device="cuda")


# ---- The command ----


def command(*arguments: str) -> tuple[int, str]:
    sizes = [f"--set={name}={value}" for name, value in {"hidden_size": 32, "num_hidden_layers": 2}.items()]
    basics = ["--data", str(corpus().folder), "--device", "cpu", "--preset", "rebased-small", "--no-board"]
    result = CliRunner().invoke(app, ["lm", "train", *basics, *sizes, *arguments])
    return result.exit_code, " ".join(result.output.split())


def test_the_greatest_seed(tmp_path: Path) -> None:
    train_small(tmp_path, small_run(seed=2**32 - 1, steps=1, warmup_steps=0))
    assert len(losses(tmp_path)) == 1


def test_the_command_trains_and_says_when_it_is_finished(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    arguments = ("--out", out, "--seq-len", "32", "--batch-size", "4", "--tokens", "700", "--log-every", "2")
    status, said = command(*arguments)
    assert status == 0, said
    assert "step 2/6" in said  # 700 tokens are six steps of 128
    assert "tokens/s" in said
    assert "step 3/6" not in said
    assert "trained on 768 tokens of corpus: loss" in said
    status, again = command(*arguments)
    assert status == 0
    assert "step 6/6" not in again
    assert again.startswith("finished before: trained on 768 tokens")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--steps", "3", "--tokens", "5"], 2, "give --steps or --tokens, not both"),
        (["--set", "fused_loss=false"], 2, "fused_loss=False does not belong to changes"),
        (["--set", "hidden_size"], 2, "'hidden_size' must be of the form name=value"),
        (["--dtype", "int8"], 2, "dtype='int8' is unknown"),
        (["--learning-rate", "0"], 2, "learning_rate=0.0 must be positive and finite"),
        (["--final-fraction", "2"], 2, "final_fraction=2.0 must be from 0 to 1"),
        (["--steps", "3", "--warmup-steps", "3"], 2, "warmup_steps=3 must be less than steps=3"),
        (["--preset", "gpt", "--batch-size", "4", "--seq-len", "32"], 1, "model='gpt' is no preset; there are"),
        (["--steps", "2", "--batch-size", "9999"], 1, "less than one batch"),
        (["--batch-size", "4", "--seq-len", "300000"], 1, "no window of --seq-len 300000; a length up to"),
        (["--batch-size", "4", "--seq-len", "300000"], 1, "would do, or --no-crossing, which pads"),
        (
            ["--batch-size", "4", "--seq-len", "32", "--set", "num_attention_heads=0"],
            1,
            "num_attention_heads=0 must be a positive integer",
        ),
    ],
)
def test_the_command_refuses_in_one_line(arguments: list[str], status: int, message: str, tmp_path: Path) -> None:
    found, said = command("--out", str(tmp_path / "run"), *arguments)
    assert found == status, said
    assert message in said.replace("│ ", "").replace(" │", "")
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_the_command_stopped_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rebased.training.language.train.train", stop)
    found = command("--out", str(tmp_path / "run"))
    assert found == (130, "error: stopped; the same command begins again: there is no checkpoint")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError("40 GiB"), "out of memory; use a smaller --micro-batch, or --gradient-checkpointing"),
        (OSError(errno.EIO, "Input/output error"), "[Errno 5] Input/output error"),
        (RuntimeError("NCCL error"), "NCCL error"),
        (ValueError("micro_batch=3 must divide"), None),
        (ImportError("pip install wandb"), None),
        (FloatingPointError("the loss of step 1 is nan"), None),
        (KeyboardInterrupt(), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_a_process_tells_what_may_be_wrong_with_it_alone(
    error: BaseException, message: str | None, rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others than the main one ended without a word, and nobody knew why a run of many had."""

    def stop(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("rebased.training.language.train.train", stop)
    for name, value in {"RANK": rank, "WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    status, said = command("--out", str(tmp_path / "run"))
    assert status == (130 if isinstance(error, KeyboardInterrupt) else 1)
    if rank == 0:
        assert said.startswith(f"error: {message or ''}")
    elif message is None:
        assert said == ""
    else:
        assert said.startswith(f"error: process 1: {message}")


def break_the_third_step(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    original, calls = Trainer.training_step, list[int]()

    def step(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise error
        return original(*arguments, **options)

    monkeypatch.setattr(Trainer, "training_step", step)


SHORT = ("--steps=5", "--seq-len=32", "--batch-size=4")


def test_a_failed_run_tells_where_until_it_begins_again(tmp_path: Path) -> None:
    """A line without a traceback was all that was left of hours."""
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        break_the_third_step(patch, RuntimeError("CUDA error: no kernel image"))
        status, said = command("--out", str(out), *SHORT)
    assert (status, "Traceback" in said) == (1, False)
    assert said.endswith(f"error: CUDA error: no kernel image; the traceback is in {out / 'error.txt'}")
    written = (out / "error.txt").read_text()
    assert "process 0\nTraceback (most recent call last)" in written
    assert "raise error" in written
    status, said = command("--out", str(out), *SHORT)
    assert status == 0, said
    assert not (out / "error.txt").exists()


def test_bugs_are_not_taken_for_bad_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_the_third_step(monkeypatch, TypeError("unsupported operand"))
    with pytest.raises(TypeError, match="unsupported operand") as raised:
        train_small(tmp_path / "library")
    assert raised.value.__notes__ == [f"the traceback is in {tmp_path / 'library' / 'error.txt'}"]
    break_the_third_step(monkeypatch, TypeError("unsupported operand"))
    arguments = ["lm", "train", "--data", str(corpus().folder), "--out", str(tmp_path / "run"), "--device", "cpu"]
    result = CliRunner().invoke(app, [*arguments, "--preset", "rebased-small", "--no-board", *SHORT])
    assert isinstance(result.exception, TypeError)
    assert (tmp_path / "run" / "error.txt").exists()


def test_what_is_foreseen_leaves_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError) as raised:
        train_small(tmp_path, small_run(learning_rate=1e30, clip=0.0))
    assert not hasattr(raised.value, "__notes__")
    assert not (tmp_path / "error.txt").exists()


def test_processes_write_one_after_another_where_they_failed(tmp_path: Path) -> None:
    """The first error is the one that ended the others."""
    for rank in (1, 0):
        assert add_error(tmp_path, OSError(f"of {rank}"), rank=rank) == tmp_path / "error.txt"
    written = (tmp_path / "error.txt").read_text()
    assert [line for line in written.splitlines() if line.startswith("OSError")] == ["OSError: of 1", "OSError: of 0"]
    assert add_error(tmp_path / "none", OSError(), rank=0) is None


def test_the_command_says_at_once_that_it_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was said until the step had ended, nor from which step the same command goes on."""
    original, calls = Trainer.training_step, list[int]()

    def step(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **options)

    monkeypatch.setattr(Trainer, "training_step", step)
    status, said = command("--out", str(tmp_path / "run"), "--steps=5", "--seq-len=32", "--batch-size=4")
    assert status == 130
    assert "stopping after this step; Ctrl-C again stops now" in said
    assert said.endswith("error: stopped; the same command goes on after step 3")


def test_history_leaves_out_time_alone(finished: Path) -> None:
    assert set(lines(finished)[0]) - set(history(finished)[0]) == {"tokens_per_second"}
