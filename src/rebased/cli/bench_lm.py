"""`rebased bench lm`.

Examples: ``rebased bench lm --generate --device cuda --dtype bfloat16 --out lm-generate.json``,
``rebased bench lm --train --device cuda --dtype bfloat16 --out lm-train.json``
"""

from typing import Annotated, Any

import typer

from rebased.bench.checks import DTYPES
from rebased.bench.lm_generate import run_generate_bench
from rebased.bench.lm_generate_results import GenerateBenchConfig
from rebased.bench.lm_train import run_train_bench
from rebased.bench.lm_train_results import TrainBenchConfig
from rebased.cli.benching import Device, Out, Threads, checked_config, run_bench
from rebased.cli.console import fail
from rebased.cli.lists import parse_names, parse_numbers
from rebased.cli.lm_generate_table import print_generate_result
from rebased.cli.lm_train_table import print_train_result
from rebased.training.packages import require_packages

__all__ = ["bench_lm"]

# Their fields' defaults; to build one would import transformers, which takes seconds.
_GENERATE, _TRAIN = GenerateBenchConfig, TrainBenchConfig


def bench_lm(
    generate: Annotated[bool, typer.Option("--generate", help="Time generate.")] = False,
    train: Annotated[bool, typer.Option("--train", help="Time steps of training.")] = False,
    device: Device = _TRAIN.device,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(DTYPES)}.")] = _TRAIN.dtype,
    models: Annotated[
        str, typer.Option(help="Presets of rebased.hf with commas between; ratios are over the first.")
    ] = ",".join(_TRAIN.models),
    contexts: Annotated[
        str | None,
        typer.Option(
            help=f"Tokens of the prompts of generate, with commas between ({','.join(map(str, _GENERATE.contexts))})."
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help=f"Tokens per sequence in training, with commas between ({','.join(map(str, _TRAIN.lengths))})."
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help=f"Sequences generated together ({_GENERATE.batch_size}).")
    ] = None,
    new_tokens: Annotated[
        int | None, typer.Option(help=f"Generated in each repetition ({_GENERATE.new_tokens}).")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help=f"Of a step of training ({_TRAIN.tokens}); a multiple of every length.")
    ] = None,
    compile: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Compile what trains; if not given, on CUDA.")
    ] = None,
    repetitions: Annotated[
        int | None, typer.Option(help=f"Timed ({_GENERATE.repetitions} of generate, {_TRAIN.repetitions} of training).")
    ] = None,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """Time language models, ours beside softmax attention's."""
    if generate == train:
        raise typer.BadParameter("give --generate or --train, which say what to time")

    def make_config() -> GenerateBenchConfig | TrainBenchConfig:
        of_generate = _given(contexts=_numbers("contexts", contexts), batch_size=batch_size, new_tokens=new_tokens)
        of_train = _given(lengths=_numbers("lengths", lengths), tokens=tokens, compile=compile)
        if generate:
            _refuse(of_train, "goes with --train, not with --generate")
        else:
            _refuse(of_generate, "goes with --generate, not with --train")
        require_packages("a bench of language models", "transformers")
        both = _given(device=device, dtype=dtype, models=parse_names(models), repetitions=repetitions, threads=threads)
        if generate:
            return GenerateBenchConfig(**both | of_generate)
        return TrainBenchConfig(**both | {"compile": device == "cuda"} | of_train)

    try:
        config = checked_config(make_config)
    except ImportError as error:
        fail(error)
    if generate:
        run_bench(run_generate_bench, config, print_generate_result, out)
    else:
        run_bench(run_train_bench, config, print_train_result, out)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _numbers(name: str, text: str | None) -> tuple[int, ...] | None:
    return None if text is None else parse_numbers(name, text)


def _refuse(options: dict[str, Any], reason: str) -> None:
    for name in options:
        raise typer.BadParameter(f"--{name.replace('_', '-')} {reason}")
