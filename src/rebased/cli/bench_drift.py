"""`rebased bench drift`.

Example: ``rebased bench drift --tokens 100000 --out drift.json``
"""

from typing import Annotated

import typer

from rebased.bench.drift import measure_drift
from rebased.cli.benching import Out, run_bench
from rebased.cli.drift_table import print_drift_result

__all__ = ["bench_drift"]


def bench_drift(
    tokens: Annotated[int, typer.Option(min=1, help="Length of the streams.")] = 1_000_000,
    out: Out = None,
) -> None:
    """How far a float32 state is from a float64 one after a long stream, in pieces and token by token."""
    run_bench(measure_drift, tokens, print_drift_result, out)
