"""`rebased bench drift`.

Example: ``rebased bench drift --tokens 100000 --out drift.json``
"""

from pathlib import Path
from typing import Annotated

import typer

from rebased.bench.drift import measure_drift
from rebased.cli.console import make_console, make_folder
from rebased.cli.drift_table import print_drift_result
from rebased.cli.progress import run_with_progress

__all__ = ["bench_drift"]


def bench_drift(
    tokens: Annotated[int, typer.Option(min=1, help="Length of the streams.")] = 1_000_000,
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="Write everything to this JSON file.")] = None,
) -> None:
    """How far a float32 state is from a float64 one after a long stream, in pieces and token by token."""
    if out is not None:
        make_folder(out.parent)
    result = run_with_progress(measure_drift, tokens)
    print_drift_result(result, make_console())
    if out is not None:
        result.write(out)
        print(f"wrote {out}")
