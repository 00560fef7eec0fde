"""`rebased bench mqar`.

Example: ``rebased bench mqar --device cuda --dtype bfloat16 --lengths 256 --replicas 1,20 --out mqar.json``
"""

from typing import Annotated

import typer

from rebased.bench.mqar import run_mqar_bench
from rebased.bench.mqar_results import MqarBenchConfig
from rebased.cli.benching import Device, MinSeconds, Out, Threads, checked_config, run_bench
from rebased.cli.lists import parse_numbers
from rebased.cli.mqar_table import print_mqar_result
from rebased.models.stacks import STACKS
from rebased.training.recall import DTYPES

__all__ = ["bench_mqar"]

_DEFAULTS = MqarBenchConfig()


def bench_mqar(
    device: Device = _DEFAULTS.device,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(DTYPES)}.")] = _DEFAULTS.dtype,
    stack: Annotated[str, typer.Option(help=f"One of {', '.join(STACKS)}.")] = _DEFAULTS.stack,
    d_model: Annotated[int, typer.Option(help="Width.")] = _DEFAULTS.d_model,
    lengths: Annotated[str, typer.Option(help="Tokens per sequence, with commas between.")] = ",".join(
        map(str, _DEFAULTS.lengths)
    ),
    num_pairs: Annotated[int, typer.Option(help="Pairs of a key and a value in an example.")] = _DEFAULTS.num_pairs,
    batch_size: Annotated[int, typer.Option(help="Examples per step.")] = _DEFAULTS.batch_size,
    replicas: Annotated[str, typer.Option(help="Runs trained together, with commas between.")] = ",".join(
        map(str, _DEFAULTS.replicas)
    ),
    micro_batches: Annotated[int, typer.Option(help="Parts that a batch is cut into.")] = _DEFAULTS.micro_batches,
    threads: Threads = None,
    min_repetitions: Annotated[int, typer.Option(help="Steps timed at least.")] = _DEFAULTS.min_repetitions,
    min_seconds: MinSeconds = _DEFAULTS.min_seconds,
    out: Out = None,
) -> None:
    """Time a step of training on MQAR, everything included, with many replicas in one program."""
    config = checked_config(
        lambda: MqarBenchConfig(
            device=device,
            dtype=dtype,
            stack=stack,
            d_model=d_model,
            lengths=parse_numbers("lengths", lengths),
            num_pairs=num_pairs,
            batch_size=batch_size,
            replicas=parse_numbers("replicas", replicas),
            micro_batches=micro_batches,
            threads=threads,
            min_repetitions=min_repetitions,
            min_seconds=min_seconds,
        )
    )
    run_bench(run_mqar_bench, config, print_mqar_result, out)
