"""`rebased bench mixers`.

Example: ``rebased bench mixers --device cuda --dtype bfloat16 --lengths 2048 --batch-size 64 --out mixers.json``
"""

from typing import Annotated

import typer

from rebased.bench.checks import DTYPES
from rebased.bench.config import PASSES
from rebased.bench.mixer_results import MixerBenchConfig
from rebased.bench.mixers import run_mixer_bench
from rebased.cli.benching import Device, MinSeconds, Out, Threads, checked_config, run_bench
from rebased.cli.lists import parse_names, parse_numbers
from rebased.cli.mixer_table import print_mixer_result
from rebased.layers import MIXERS

__all__ = ["bench_mixers"]

_DEFAULTS = MixerBenchConfig()


def bench_mixers(
    device: Device = _DEFAULTS.device,
    dtype: Annotated[str, typer.Option(help=f"Of weights and inputs: one of {', '.join(DTYPES)}.")] = _DEFAULTS.dtype,
    mixers: Annotated[
        str, typer.Option(help=f"With commas between, of {', '.join(MIXERS)}; all are compared with the first.")
    ] = ",".join(_DEFAULTS.mixers),
    lengths: Annotated[str, typer.Option(help="Tokens per sequence, with commas between.")] = ",".join(
        map(str, _DEFAULTS.lengths)
    ),
    batch_size: Annotated[int, typer.Option(help="Sequences per call.")] = _DEFAULTS.batch_size,
    d_model: Annotated[int, typer.Option(help="Width.")] = _DEFAULTS.d_model,
    passes: Annotated[
        str, typer.Option(help=f"What a call does, of {', '.join(PASSES)}: both is forward and backward.")
    ] = _DEFAULTS.passes,
    threads: Threads = None,
    min_repetitions: Annotated[int, typer.Option(help="Calls timed at least.")] = _DEFAULTS.min_repetitions,
    min_seconds: MinSeconds = _DEFAULTS.min_seconds,
    out: Out = None,
) -> None:
    """Time whole layers side by side, with their own defaults, and measure their memory."""
    config = checked_config(
        lambda: MixerBenchConfig(
            device=device,
            dtype=dtype,
            mixers=parse_names(mixers),
            lengths=parse_numbers("lengths", lengths),
            batch_size=batch_size,
            d_model=d_model,
            passes=passes,
            threads=threads,
            min_repetitions=min_repetitions,
            min_seconds=min_seconds,
        )
    )
    run_bench(run_mixer_bench, config, print_mixer_result, out)
