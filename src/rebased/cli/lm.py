"""`rebased lm`: language models."""

import typer

from rebased.cli.lm_generate import generate

__all__ = ["lm_app"]

lm_app = typer.Typer(help="Language models.", no_args_is_help=True)
lm_app.command("generate")(generate)


@lm_app.callback()
def _root() -> None:
    pass
