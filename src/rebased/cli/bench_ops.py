"""`rebased bench ops`.

Example: ``rebased bench ops --passes both --lengths 2048,4096,8192 --out ops.json``
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rebased.bench import plot
from rebased.bench.checks import DTYPES
from rebased.bench.config import PASSES, OpsBenchConfig, backends_on
from rebased.bench.ops import run_ops_bench
from rebased.bench.peers import PEERS
from rebased.bench.results import OpsBenchResult
from rebased.cli.accuracy_table import print_accuracy
from rebased.cli.bench_plot import check_drawable
from rebased.cli.benching import Device, MinSeconds, Out, Threads, checked_config, run_bench
from rebased.cli.console import make_folder
from rebased.cli.lists import parse_names, parse_numbers
from rebased.cli.ops_table import print_ops_result
from rebased.ops import BACKENDS

__all__ = ["bench_ops"]

_DEFAULTS = OpsBenchConfig()


def bench_ops(
    device: Device = _DEFAULTS.device,
    dtype: Annotated[str, typer.Option(help=f"Of the inputs: one of {', '.join(DTYPES)}.")] = _DEFAULTS.dtype,
    lengths: Annotated[str, typer.Option(help="Tokens per sequence, with commas between.")] = ",".join(
        map(str, _DEFAULTS.lengths)
    ),
    passes: Annotated[
        str, typer.Option(help=f"What a call does, of {', '.join(PASSES)}: both is forward and backward.")
    ] = ",".join(_DEFAULTS.passes),
    backends: Annotated[
        str | None,
        typer.Option(help=f"With commas between, of {', '.join(BACKENDS)}; if not given, those the device has."),
    ] = None,
    peers: Annotated[
        str, typer.Option(help=f"flash-linear-attention's kernels, of {', '.join(PEERS)}; or all.")
    ] = ",".join(_DEFAULTS.peers),
    batch_size: Annotated[int | None, typer.Option(help="Sequences per call; 1 if not given.")] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens per call instead: the batch size is this over the length.")
    ] = None,
    num_heads: Annotated[int, typer.Option(help="Heads.")] = _DEFAULTS.num_heads,
    feature_dim: Annotated[int, typer.Option(help="Size of queries and keys per head.")] = _DEFAULTS.feature_dim,
    head_dim: Annotated[int, typer.Option(help="Size of values per head.")] = _DEFAULTS.head_dim,
    sdpa_heads: Annotated[int | None, typer.Option(help="SDPA's heads; as many as ours if not given.")] = None,
    sdpa_head_dim: Annotated[
        int | None, typer.Option(help="Size of SDPA's heads; that of our values if not given.")
    ] = None,
    threads: Threads = None,
    max_reference_length: Annotated[
        int, typer.Option(help="Skip the reference backend, quadratic in memory, at longer lengths.")
    ] = _DEFAULTS.max_reference_length,
    max_sdpa_length: Annotated[
        int, typer.Option(help="Skip SDPA, quadratic in time, at longer lengths.")
    ] = _DEFAULTS.max_sdpa_length,
    max_peer_length: Annotated[
        int, typer.Option(help="Skip the peers, quadratic or slow, at longer lengths.")
    ] = _DEFAULTS.max_peer_length,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help="Also measure errors against float64 at the sizes that are timed.")
    ] = _DEFAULTS.accuracy,
    graphs: Annotated[
        bool | None,
        typer.Option("--graphs/--no-graphs", help="Replay calls from CUDA graphs; if not given, on CUDA."),
    ] = None,
    min_repetitions: Annotated[int, typer.Option(help="Calls timed at least.")] = _DEFAULTS.min_repetitions,
    min_seconds: MinSeconds = _DEFAULTS.min_seconds,
    out: Out = None,
    figure: Annotated[Path | None, typer.Option(dir_okay=False, help="Draw time over length: png, svg or pdf.")] = None,
) -> None:
    """Time kernel_attention, PyTorch's scaled_dot_product_attention and public kernels over sequence length.

    Each backend of ours is first checked against the float64 reference; a wrong one is not timed.
    """
    config = checked_config(
        lambda: OpsBenchConfig(
            device=device,
            dtype=dtype,
            lengths=parse_numbers("lengths", lengths),
            backends=backends_on(device) if backends is None else parse_names(backends),
            peers=tuple(PEERS) if peers == "all" else parse_names(peers),
            passes=parse_names(passes),
            batch_size=batch_size,
            tokens=tokens,
            num_heads=num_heads,
            feature_dim=feature_dim,
            head_dim=head_dim,
            sdpa_heads=sdpa_heads,
            sdpa_head_dim=sdpa_head_dim,
            threads=threads,
            max_reference_length=max_reference_length,
            max_sdpa_length=max_sdpa_length,
            max_peer_length=max_peer_length,
            accuracy=accuracy,
            graphs=device == "cuda" if graphs is None else graphs,
            min_repetitions=min_repetitions,
            min_seconds=min_seconds,
        )
    )
    if figure is not None:
        check_drawable(figure)
        make_folder(figure.parent)
    result = run_bench(run_ops_bench, config, _show, out)
    if figure is not None:
        plot.save(plot.draw(result), figure)
        print(f"wrote {figure}")


def _show(result: OpsBenchResult, console: Console) -> None:
    print_ops_result(result, console)
    print_accuracy(result, console)
