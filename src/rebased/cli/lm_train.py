"""`rebased lm train`: a language model, trained on a prepared corpus by the paper's recipe.

Examples: ``rebased lm train --data corpus --out run --preset rebased-small --seq-len 512 --steps 1000``,
``torchrun --nproc-per-node 8 -m rebased.cli lm train --data corpus --out run``
"""

from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer

from rebased.cli.console import STOPPED, fail, in_options
from rebased.runs import TRAINING
from rebased.training.devices import DEVICE_KINDS, choose_device
from rebased.training.language.checkpoints import CHECKPOINTS, last_checkpoint, step_of
from rebased.training.language.config import DTYPES, LanguageRunConfig, RunOptions, steps_for
from rebased.training.language.layout import current_processes

__all__ = ["run_training", "train"]

_PAPER, _OPTIONS = LanguageRunConfig(), RunOptions()


def train(
    data: Annotated[Path, typer.Option(help="A corpus, as `rebased data prepare` makes it.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder of the run, and of the model at its end.")],
    preset: Annotated[
        str, typer.Option(help="rebased, based or attention, also with -medium or -small.")
    ] = _PAPER.model,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A field of the model: hidden_size=64, num_hidden_layers=2, …"
        ),
    ] = None,
    seq_len: Annotated[int, typer.Option(help="Tokens of a sequence.")] = _PAPER.seq_len,
    batch_size: Annotated[
        int, typer.Option(help="Sequences of a step, over all devices and micro-batches.")
    ] = _PAPER.batch_size,
    micro_batch: Annotated[
        int | None,
        typer.Option(help="Sequences at a time on one device; by default what has 32,768 tokens, on a CPU 4,096."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help=f"Of the optimizer; {_PAPER.steps} by default.")] = None,
    tokens: Annotated[int | None, typer.Option(help="To train on, in place of --steps.")] = None,
    learning_rate: Annotated[float, typer.Option(help="After warm-up.")] = _PAPER.learning_rate,
    final_fraction: Annotated[
        float, typer.Option(help="The share of --learning-rate that is left at the end: 0.1 is a tenth.")
    ] = _PAPER.final_fraction,
    warmup_steps: Annotated[int | None, typer.Option(help="200, or a tenth of fewer steps.")] = None,
    weight_decay: Annotated[float, typer.Option(help="Not of norms, biases, γ and β.")] = _PAPER.weight_decay,
    clip: Annotated[float, typer.Option(help="Largest norm of the gradients; 0 is none.")] = _PAPER.clip,
    beta1: Annotated[float, typer.Option(help="Of AdamW.")] = _PAPER.beta1,
    beta2: Annotated[float, typer.Option(help="Of AdamW.")] = _PAPER.beta2,
    seed: Annotated[int, typer.Option(help="Of weights, data order and dropout.")] = _PAPER.seed,
    dtype: Annotated[
        str | None, typer.Option(help=f"Of products: {' or '.join(DTYPES)}; by default bfloat16 on a GPU.")
    ] = None,
    crossing: Annotated[bool, typer.Option(help="Whether sequences run on over the ends of documents.")] = True,
    device: Annotated[str, typer.Option(help=f"One of {', '.join(DEVICE_KINDS)}.")] = _OPTIONS.device,
    compile_model: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Compile the layers; by default on a GPU.")
    ] = None,
    fused_loss: Annotated[bool, typer.Option(help="Compute the loss without the logits.")] = _OPTIONS.fused_loss,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Less memory, more time.")
    ] = _OPTIONS.gradient_checkpointing,
    fsdp: Annotated[bool, typer.Option("--fsdp", help="Shard weights over the processes (FSDP2).")] = _OPTIONS.fsdp,
    checkpoint_every: Annotated[int, typer.Option(help="Steps.")] = _OPTIONS.checkpoint_every,
    keep: Annotated[int, typer.Option(help="Checkpoints kept; 0 is all.")] = _OPTIONS.keep,
    eval_every: Annotated[
        int, typer.Option(help="Steps between losses on the validation split; 0 is only at the end.")
    ] = _OPTIONS.eval_every,
    eval_sequences: Annotated[
        int, typer.Option(help="Of the validation split, spread over it.")
    ] = _OPTIONS.eval_sequences,
    log_every: Annotated[int, typer.Option(min=1, help="Steps between two lines of progress.")] = 10,
    board: Annotated[bool, typer.Option(help="Write TensorBoard's event files.")] = _OPTIONS.board,
    wandb: Annotated[str | None, typer.Option(metavar="PROJECT", help="Also log to Weights & Biases.")] = None,
) -> None:
    """Train a language model. Stopped or killed, the same command goes on; finished, it says so.

    The defaults are the paper's: AdamW, 20,000 steps of 1024 sequences of 4096 tokens. In each of torchrun's or
    accelerate's processes it trains a share of every step.
    """
    from rebased.training.language.model_config import read_changes

    try:
        if tokens is not None:
            if steps is not None:
                raise ValueError("give --steps or --tokens, not both")
            steps = steps_for(tokens, batch_size=batch_size, seq_len=seq_len)
        steps = _PAPER.steps if steps is None else steps
        config = LanguageRunConfig(
            model=preset,
            changes=read_changes(settings or []),
            seq_len=seq_len,
            batch_size=batch_size,
            steps=steps,
            learning_rate=learning_rate,
            final_fraction=final_fraction,
            warmup_steps=min(_PAPER.warmup_steps, max(steps, 0) // 10) if warmup_steps is None else warmup_steps,
            weight_decay=weight_decay,
            clip=clip,
            beta1=beta1,
            beta2=beta2,
            seed=seed,
            dtype=dtype or ("float32" if choose_device(device) == "cpu" else "bfloat16"),
            crossing=crossing,
        )
        options = RunOptions(
            device=device,
            micro_batch=micro_batch,
            compile=compile_model,
            fused_loss=fused_loss,
            gradient_checkpointing=gradient_checkpointing,
            fsdp=fsdp,
            checkpoint_every=checkpoint_every,
            keep=keep,
            eval_every=eval_every,
            eval_sequences=eval_sequences,
            board=board,
            wandb_project=wandb,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    was_finished = (out / TRAINING).exists()
    facts = run_training(config, data, out, options, log_every=log_every)
    if current_processes().is_main:
        told = f"trained on {facts['tokens']:,} tokens of {facts['corpus']}: {_losses(facts)}"
        print(f"finished before: {told}" if was_finished else told)
        print(f'the model is in {out}; to hear it: rebased lm generate {out} "…"')


def run_training(
    config: LanguageRunConfig, data: Path, out: Path, options: RunOptions, *, log_every: int
) -> dict[str, Any]:
    """With progress; ends the command with the reason if it cannot be.

    What ends all processes alike, the main one alone tells; what ends one of them, it tells itself.
    """
    from rebased.cli.lm_progress import training_progress
    from rebased.corpora import open_corpus
    from rebased.training.language.train import train

    try:
        with training_progress(log_every) as report:
            return train(config, open_corpus(data), out, options, report=report)
    except KeyboardInterrupt:
        last = last_checkpoint(out / CHECKPOINTS)
        where = "begins again: there is no checkpoint" if last is None else f"goes on after step {step_of(last)}"
        _fail(f"stopped; the same command {where}", status=STOPPED, is_told_by_main=True)
    except torch.OutOfMemoryError as error:
        _fail(f"out of memory; use a smaller --micro-batch, or --gradient-checkpointing ({_with_notes(error)})")
    except (ImportError, ValueError, FloatingPointError) as error:  # of arguments, packages and means over all
        _fail(in_options(_with_notes(error), "compile", "crossing", length="seq_len"), is_told_by_main=True)
    except (RuntimeError, OSError) as error:
        _fail(_with_notes(error))


def _fail(message: object, *, status: int = 1, is_told_by_main: bool = False) -> NoReturn:
    """``is_told_by_main``: every process is here with the same message."""
    processes = current_processes()
    if processes.is_main:
        fail(message, status=status)
    if is_told_by_main:
        raise typer.Exit(status) from None
    fail(f"process {processes.rank}: {message}", status=status)


def _with_notes(error: Exception) -> str:
    """Such as where its traceback is."""
    return "; ".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])


def _losses(facts: dict[str, Any]) -> str:
    shown = f"loss {facts['loss']:.4f} in the last step"
    return shown if facts["validation_loss"] is None else f"{shown}, validation {facts['validation_loss']:.4f} after it"
