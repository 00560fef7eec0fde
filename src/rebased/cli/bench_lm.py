"""`rebased bench lm`.

Examples: ``rebased bench lm --generate --device cuda --dtype bfloat16 --out lm-generate.json``,
``rebased bench lm --train --device cuda --dtype bfloat16 --out lm-train.json``
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from rebased.bench.checks import DEVICES, DTYPES
from rebased.bench.lm_generate import run_generate_bench
from rebased.bench.lm_generate_results import GenerateBenchConfig
from rebased.bench.lm_train import run_train_bench
from rebased.bench.lm_train_results import TrainBenchConfig
from rebased.cli.console import make_console, make_folder
from rebased.cli.lists import parse_names, parse_numbers
from rebased.cli.lm_generate_table import print_generate_result
from rebased.cli.lm_train_table import print_train_result
from rebased.cli.progress import run_with_progress

__all__ = ["bench_lm"]


def bench_lm(
    generate: Annotated[bool, typer.Option("--generate", help="Time generate.")] = False,
    train: Annotated[bool, typer.Option("--train", help="Time steps of training.")] = False,
    device: Annotated[str, typer.Option(help=f"One of {', '.join(DEVICES)}.")] = "cpu",
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(DTYPES)}.")] = "float32",
    models: Annotated[
        str, typer.Option(help="Presets of rebased.hf with commas between; ratios are over the first.")
    ] = "attention,based,rebased",
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Tokens of a prompt (1024,8192,32768) or of a sequence in training (4096,16384,65536), with commas "
            "between."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Sequences generated together.")] = 64,
    new_tokens: Annotated[int, typer.Option(help="Generated in each repetition.")] = 64,
    tokens: Annotated[int, typer.Option(help="Of a step of training.")] = 65536,
    compile: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Compile what trains; if not given, on CUDA.")
    ] = None,
    repetitions: Annotated[int, typer.Option(help="Timed.")] = 5,
    threads: Annotated[int | None, typer.Option(help="CPU threads; torch's own choice if not given.")] = None,
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="Write everything to this JSON file.")] = None,
) -> None:
    """Time language models, ours beside softmax attention's."""
    if generate == train:
        raise typer.BadParameter("give --generate or --train, which say what to time")
    both: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "models": parse_names(models),
        "repetitions": repetitions,
        "threads": threads,
    }
    try:
        numbers = None if lengths is None else parse_numbers("lengths", lengths)
        given: dict[str, Any]
        if generate:
            given = {} if numbers is None else {"contexts": numbers}
            config: Any = GenerateBenchConfig(**both, **given, batch_size=batch_size, new_tokens=new_tokens)
        else:
            given = {} if numbers is None else {"lengths": numbers}
            config = TrainBenchConfig(
                **both, **given, tokens=tokens, compile=device == "cuda" if compile is None else compile
            )
        config.check_machine()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if out is not None:
        make_folder(out.parent)
    run: Callable[..., Any] = run_generate_bench if generate else run_train_bench
    show: Callable[..., None] = print_generate_result if generate else print_train_result
    result = run_with_progress(run, config)
    show(result, make_console())
    if out is not None:
        result.write(out)
        print(f"wrote {out}")
