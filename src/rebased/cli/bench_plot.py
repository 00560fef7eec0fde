"""`rebased bench plot`.

Example: ``rebased bench plot benchmarks/ops-cpu.json --out ops-cpu.png``
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from rebased.bench import plot
from rebased.bench.results import OpsBenchResult
from rebased.cli.console import fail, make_folder

__all__ = ["bench_plot", "check_drawable"]

_FORMATS = (".png", ".svg", ".pdf")


def bench_plot(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What `rebased bench ops --out` wrote.")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="The picture: png, svg or pdf.")],
) -> None:
    """Draw time over length on logarithmic axes from a file of numbers."""
    check_drawable(out)
    try:
        result = OpsBenchResult.from_json(json.loads(file.read_text()))
    except (ValueError, TypeError, KeyError) as error:
        fail(f"{file} does not hold a result of `rebased bench ops`: {error}")
    make_folder(out.parent)
    plot.save(plot.draw(result), out)
    print(f"wrote {out}")


def check_drawable(path: Path) -> None:
    """End the command, before any work, if a picture cannot be drawn or not in this format."""
    if path.suffix not in _FORMATS:
        raise typer.BadParameter(f"{path} must end in {', '.join(_FORMATS)}")
    if find_spec("matplotlib") is None:
        fail("drawing needs matplotlib: pip install matplotlib")
