"""The application that the subcommands hang from."""

from typing import Annotated

import typer

from rebased import __version__
from rebased.cli.bench import bench_app
from rebased.cli.data import data_app
from rebased.cli.lm import lm_app
from rebased.cli.mqar import mqar
from rebased.cli.paper import paper_app
from rebased.cli.quickstart import quickstart
from rebased.cli.sweep import sweep

__all__ = ["app"]

app = typer.Typer(
    name="rebased",
    help="Kernel attention that really is linear: measure it, see it, reproduce the paper.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.add_typer(bench_app, name="bench")
app.add_typer(paper_app, name="paper")
app.add_typer(data_app, name="data")
app.add_typer(lm_app, name="lm")
app.command("quickstart")(quickstart)
app.command("mqar")(mqar)
app.command("sweep")(sweep)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"rebased {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
