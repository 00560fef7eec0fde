"""What the commands that bench have in common: options, checks of them, a spinner, a file for the result."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from rebased.bench.checks import DEVICES
from rebased.bench.files import Result
from rebased.bench.machine import OnMachine
from rebased.bench.verify import WrongBackendError
from rebased.cli.console import fail, make_console, make_folder

__all__ = ["Device", "MinSeconds", "Out", "Threads", "checked_config", "run_bench"]

Device = Annotated[str, typer.Option(help=f"One of {', '.join(DEVICES)}.")]
MinSeconds = Annotated[float, typer.Option(help="Seconds timed at least.")]
Out = Annotated[Path | None, typer.Option(dir_okay=False, help="Write everything to this JSON file.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; torch's own choice if not given.")]

Config = TypeVar("Config", bound=OnMachine)
Found = TypeVar("Found", bound=Result)


def checked_config(make_config: Callable[[], Config]) -> Config:
    """The config, if this machine can run it; a ValueError of either ends the command as a wrong option does."""
    try:
        config = make_config()
        config.check_machine()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return config


def run_bench(run: Callable[..., Found], asked: Any, show: Callable[[Found, Console], None], out: Path | None) -> Found:
    """Print what ``run(asked, progress=…)`` finds, and write it to ``out``, whose folder is made before."""
    if out is not None:
        make_folder(out.parent)
    result = _with_spinner(run, asked)
    show(result, make_console())
    if out is not None:
        result.write(out)
        print(f"wrote {out}")
    return result


def _with_spinner(run: Callable[..., Found], asked: Any) -> Found:
    """On a terminal; a refusal ends the command with its reason."""
    try:
        with make_console(stderr=True).status("starting") as status:
            return run(asked, progress=status.update)
    except (WrongBackendError, ValueError) as error:  # wrong, or not able to take these sizes
        fail(error)
