"""`rebased quickstart`: what this package is about, in a minute or two on any machine."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from rebased.bench.config import OpsBenchConfig, backends_on
from rebased.bench.ops import run_ops_bench
from rebased.cli.console import fail, make_console, make_folder
from rebased.cli.ops_table import print_ops_result
from rebased.cli.progress import run_with_progress
from rebased.paper import figure2

__all__ = ["quickstart", "quickstart_config"]


def quickstart_config() -> OpsBenchConfig:
    """Forward and backward, sized to this machine: long sequences on a GPU, up to 8192 tokens on a CPU."""
    if torch.cuda.is_available():
        lengths = tuple(2**power for power in range(10, 17))
        return OpsBenchConfig(
            device="cuda",
            dtype="bfloat16",
            lengths=lengths,
            backends=backends_on("cuda"),
            passes=("both",),
            max_sdpa_length=lengths[-1],
        )
    return OpsBenchConfig(lengths=(512, 1024, 2048, 4096, 8192), passes=("both",), min_repetitions=3, min_seconds=0.3)


def quickstart(
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the figure and the numbers.")] = Path("out"),
) -> None:
    """Draw Figure 2 of the paper, time kernel attention beside softmax attention, and show the table."""
    try:
        figure = figure2.draw(figure2.similarity_curves())
    except ImportError as error:
        fail(error)
    make_folder(out)
    written = figure2.save(figure, out)
    result = run_with_progress(run_ops_bench, quickstart_config())
    numbers = out / "bench-ops.json"
    result.write(numbers)
    print_ops_result(result, make_console())
    for path in (*written, numbers):
        print(f"wrote {path}")
