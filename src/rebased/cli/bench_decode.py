"""`rebased bench decode`.

Example: ``rebased bench decode --device cuda --dtype bfloat16 --out decode.json``
"""

from typing import Annotated

import typer

from rebased.bench.checks import DTYPES
from rebased.bench.decode import run_decode_bench
from rebased.bench.decode_results import DecodeBenchConfig
from rebased.cli.benching import Device, MinSeconds, Out, Threads, checked_config, run_bench
from rebased.cli.decode_table import print_decode_result
from rebased.cli.lists import parse_numbers
from rebased.ops.backends import TORCH_OR_TRITON

__all__ = ["bench_decode"]

_DEFAULTS = DecodeBenchConfig()


def bench_decode(
    device: Device = _DEFAULTS.device,
    dtype: Annotated[str, typer.Option(help=f"Of the inputs: one of {', '.join(DTYPES)}.")] = _DEFAULTS.dtype,
    contexts: Annotated[str, typer.Option(help="Tokens in SDPA's cache, with commas between.")] = ",".join(
        map(str, _DEFAULTS.contexts)
    ),
    batch_size: Annotated[int, typer.Option(help="Sequences decoded together.")] = _DEFAULTS.batch_size,
    num_heads: Annotated[int, typer.Option(help="Heads with a state.")] = _DEFAULTS.num_heads,
    feature_dim: Annotated[int, typer.Option(help="Size of their queries and keys.")] = _DEFAULTS.feature_dim,
    head_dim: Annotated[int, typer.Option(help="Size of their values.")] = _DEFAULTS.head_dim,
    sdpa_heads: Annotated[int, typer.Option(help="SDPA's heads.")] = _DEFAULTS.sdpa_heads,
    sdpa_head_dim: Annotated[int, typer.Option(help="Size of SDPA's heads.")] = _DEFAULTS.sdpa_head_dim,
    backend: Annotated[
        str, typer.Option(help=f"Of kernel_attention_step: auto, {', '.join(TORCH_OR_TRITON)}.")
    ] = _DEFAULTS.backend,
    graphs: Annotated[
        bool | None,
        typer.Option("--graphs/--no-graphs", help="Replay steps from CUDA graphs; if not given, on CUDA."),
    ] = None,
    threads: Threads = None,
    min_repetitions: Annotated[int, typer.Option(help="Steps timed at least.")] = _DEFAULTS.min_repetitions,
    min_seconds: MinSeconds = _DEFAULTS.min_seconds,
    out: Out = None,
) -> None:
    """Time one decoding step with a state beside softmax attention with a cache of keys and values."""
    config = checked_config(
        lambda: DecodeBenchConfig(
            device=device,
            dtype=dtype,
            contexts=parse_numbers("contexts", contexts),
            batch_size=batch_size,
            num_heads=num_heads,
            feature_dim=feature_dim,
            head_dim=head_dim,
            sdpa_heads=sdpa_heads,
            sdpa_head_dim=sdpa_head_dim,
            backend=backend,
            graphs=device == "cuda" if graphs is None else graphs,
            threads=threads,
            min_repetitions=min_repetitions,
            min_seconds=min_seconds,
        )
    )
    run_bench(run_decode_bench, config, print_decode_result, out)
