"""`rebased bench …`: time this package beside its peers.

Example: ``rebased bench ops --backward --lengths 2048,4096,8192 --out ops.json``
"""

from pathlib import Path
from typing import Annotated

import typer

from rebased.bench.config import DEVICES, DTYPES, OpsBenchConfig
from rebased.bench.drift import measure_drift
from rebased.bench.files import write_json
from rebased.bench.ops import run_ops_bench
from rebased.bench.results import OpsBenchResult
from rebased.bench.verify import WrongBackendError
from rebased.cli.console import fail, make_console, make_folder
from rebased.cli.drift_table import print_drift_result
from rebased.cli.ops_table import print_ops_result
from rebased.ops import BACKENDS

__all__ = ["bench_app", "run_with_progress"]

bench_app = typer.Typer(
    help="Measure this package: speed beside its peers, accuracy over long streams.", no_args_is_help=True
)
_DEFAULTS = OpsBenchConfig()


@bench_app.callback()
def _bench() -> None:
    pass


@bench_app.command("ops")
def bench_ops(
    device: Annotated[str, typer.Option(help=f"One of {', '.join(DEVICES)}.")] = _DEFAULTS.device,
    dtype: Annotated[str, typer.Option(help=f"Of the inputs: one of {', '.join(DTYPES)}.")] = _DEFAULTS.dtype,
    lengths: Annotated[str, typer.Option(help="Tokens per sequence, with commas between.")] = ",".join(
        map(str, _DEFAULTS.lengths)
    ),
    backward: Annotated[
        bool, typer.Option("--backward/--forward", help="Time forward and backward, or forward alone.")
    ] = _DEFAULTS.backward,
    backends: Annotated[str, typer.Option(help=f"With commas between, of {', '.join(BACKENDS)}.")] = ",".join(
        _DEFAULTS.backends
    ),
    batch_size: Annotated[int, typer.Option(help="Sequences per call.")] = _DEFAULTS.batch_size,
    num_heads: Annotated[int, typer.Option(help="Heads, for SDPA too.")] = _DEFAULTS.num_heads,
    feature_dim: Annotated[int, typer.Option(help="Size of queries and keys per head.")] = _DEFAULTS.feature_dim,
    head_dim: Annotated[
        int, typer.Option(help="Size of values per head, and of SDPA's queries and keys.")
    ] = _DEFAULTS.head_dim,
    threads: Annotated[int | None, typer.Option(help="CPU threads; torch's own choice if not given.")] = None,
    max_reference_length: Annotated[
        int, typer.Option(help="Skip the reference backend, quadratic in memory, at longer lengths.")
    ] = _DEFAULTS.max_reference_length,
    max_sdpa_length: Annotated[
        int, typer.Option(help="Skip SDPA, quadratic in time, at longer lengths.")
    ] = _DEFAULTS.max_sdpa_length,
    min_repetitions: Annotated[int, typer.Option(help="Calls timed at least.")] = _DEFAULTS.min_repetitions,
    min_seconds: Annotated[float, typer.Option(help="Seconds timed at least.")] = _DEFAULTS.min_seconds,
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="Write everything to this JSON file.")] = None,
) -> None:
    """Time kernel_attention's backends and PyTorch's scaled_dot_product_attention over sequence length.

    Each backend is first checked against the float64 reference; a wrong one is not timed.
    """
    try:
        config = OpsBenchConfig(
            device=device,
            dtype=dtype,
            lengths=_parse_lengths(lengths),
            backward=backward,
            backends=tuple(_split(backends)),
            batch_size=batch_size,
            num_heads=num_heads,
            feature_dim=feature_dim,
            head_dim=head_dim,
            threads=threads,
            max_reference_length=max_reference_length,
            max_sdpa_length=max_sdpa_length,
            min_repetitions=min_repetitions,
            min_seconds=min_seconds,
        )
        config.check_machine()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if out is not None:
        make_folder(out.parent)
    result = run_with_progress(config)
    print_ops_result(result, make_console())
    if out is not None:
        result.write(out)
        print(f"wrote {out}")


@bench_app.command("drift")
def bench_drift(
    tokens: Annotated[int, typer.Option(min=1, help="Length of the streams.")] = 1_000_000,
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="Write everything to this JSON file.")] = None,
) -> None:
    """How far a float32 state is from a float64 one after a long stream, in pieces and token by token."""
    if out is not None:
        make_folder(out.parent)
    with make_console(stderr=True).status("starting") as status:
        result = measure_drift(tokens, progress=status.update)
    print_drift_result(result, make_console())
    if out is not None:
        write_json(out, result.to_json())
        print(f"wrote {out}")


def run_with_progress(config: OpsBenchConfig) -> OpsBenchResult:
    """Run the bench with a spinner on a terminal; a backend that is refused ends the command with its reason."""
    try:
        with make_console(stderr=True).status("starting") as status:
            return run_ops_bench(config, progress=status.update)
    except WrongBackendError as error:
        fail(error)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_lengths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in _split(text))
    except ValueError:
        raise ValueError(f"lengths: {text!r} is not a list of positive integers with commas between") from None
