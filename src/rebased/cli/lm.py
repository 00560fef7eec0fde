"""`rebased lm`: language models."""

import typer

from rebased.cli.lm_demo import demo
from rebased.cli.lm_eval import evaluate_model
from rebased.cli.lm_generate import generate
from rebased.cli.lm_train import train

__all__ = ["lm_app"]

lm_app = typer.Typer(help="Language models.", no_args_is_help=True)
lm_app.command("generate")(generate)
lm_app.command("train")(train)
lm_app.command("eval")(evaluate_model)
lm_app.command("demo")(demo)


@lm_app.callback()
def _root() -> None:
    pass
