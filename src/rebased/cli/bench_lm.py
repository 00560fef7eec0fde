"""`rebased bench lm`.

Example: ``rebased bench lm --generate --device cuda --dtype bfloat16 --out lm-generate.json``
"""

from pathlib import Path
from typing import Annotated

import typer

from rebased.bench.checks import DEVICES, DTYPES
from rebased.bench.lm_generate import run_generate_bench
from rebased.bench.lm_generate_results import GenerateBenchConfig
from rebased.cli.console import make_console, make_folder
from rebased.cli.lists import parse_names, parse_numbers
from rebased.cli.lm_generate_table import print_generate_result
from rebased.cli.progress import run_with_progress

__all__ = ["bench_lm"]


def bench_lm(
    generate: Annotated[bool, typer.Option("--generate", help="Tokens per second of generate.")] = False,
    device: Annotated[str, typer.Option(help=f"One of {', '.join(DEVICES)}.")] = "cpu",
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(DTYPES)}.")] = "float32",
    models: Annotated[
        str, typer.Option(help="Presets of rebased.hf with commas between; ratios are over the first.")
    ] = "attention,based,rebased",
    contexts: Annotated[str, typer.Option(help="Tokens of the prompts, with commas between.")] = "1024,8192,32768",
    batch_size: Annotated[int, typer.Option(help="Sequences generated together.")] = 64,
    new_tokens: Annotated[int, typer.Option(help="Generated in each repetition.")] = 64,
    repetitions: Annotated[int, typer.Option(help="Timed.")] = 3,
    threads: Annotated[int | None, typer.Option(help="CPU threads; torch's own choice if not given.")] = None,
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="Write everything to this JSON file.")] = None,
) -> None:
    """Time language models, ours beside softmax attention's."""
    if not generate:
        raise typer.BadParameter("say what to time: --generate")
    try:
        config = GenerateBenchConfig(
            device=device,
            dtype=dtype,
            models=parse_names(models),
            contexts=parse_numbers("contexts", contexts),
            batch_size=batch_size,
            new_tokens=new_tokens,
            repetitions=repetitions,
            threads=threads,
        )
        config.check_machine()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if out is not None:
        make_folder(out.parent)
    result = run_with_progress(run_generate_bench, config)
    print_generate_result(result, make_console())
    if out is not None:
        result.write(out)
        print(f"wrote {out}")
