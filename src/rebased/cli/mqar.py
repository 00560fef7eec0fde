"""`rebased mqar`.

Example: ``rebased mqar --stack rebased --d-model 48 --seq-len 256 --num-pairs 32 --seeds 42,43 --out runs/d48``
"""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from rebased.cli.lists import parse_floats, parse_numbers
from rebased.cli.train import Device, Jobs, WandB, choose_engine, train
from rebased.models import STACKS
from rebased.training.grid import expand_grid
from rebased.training.recall import DTYPES, RecallConfig

__all__ = ["mqar"]

_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(RecallConfig)}


def mqar(
    stack: Annotated[str, typer.Option(help=f"The model: one of {', '.join(STACKS)}.")] = "rebased",
    d_model: Annotated[int, typer.Option(help="Width.")] = 48,
    seq_len: Annotated[int, typer.Option(help="Tokens per example.")] = 256,
    num_pairs: Annotated[int, typer.Option(help="Pairs of key and value in an example.")] = 32,
    learning_rates: Annotated[
        str, typer.Option(help="With commas between; each is tried with each seed.")
    ] = "5e-4,1e-3,3e-3,1e-2",
    seeds: Annotated[
        str, typer.Option(help="Of initial weights, order and dropout, with commas between.")
    ] = "42,43,44,45,46",
    epochs: Annotated[int, typer.Option(help="At most.")] = _DEFAULTS["epochs"],
    stop_above: Annotated[float, typer.Option(help="Accuracy on the test set at which a run ends early.")] = _DEFAULTS[
        "stop_above"
    ],
    batch_size: Annotated[int, typer.Option(help="Examples per step.")] = _DEFAULTS["batch_size"],
    weight_decay: Annotated[float, typer.Option(help="Of all weights.")] = _DEFAULTS["weight_decay"],
    num_train: Annotated[int, typer.Option(help="Examples per epoch.")] = _DEFAULTS["num_train"],
    num_test: Annotated[int, typer.Option(help="Examples to test with.")] = _DEFAULTS["num_test"],
    endless: Annotated[bool, typer.Option("--endless", help="New examples every epoch.")] = False,
    vocab_size: Annotated[int, typer.Option(help="Tokens there are.")] = _DEFAULTS["vocab_size"],
    random_non_queries: Annotated[
        bool, typer.Option("--random-non-queries", help="Random tokens instead of token 0 between queries.")
    ] = False,
    dtype: Annotated[str, typer.Option(help=f"Of products: one of {', '.join(DTYPES)}.")] = _DEFAULTS["dtype"],
    device: Device = "auto",
    jobs: Jobs = 1,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the plan, the runs and their logs.")] = Path(
        "runs/mqar"
    ),
    wandb: WandB = None,
) -> None:
    """Train one cell on multi-query associative recall: all learning rates and seeds together.

    Stopped or killed, the same command goes on where it was. For more than one cell, or other tasks: rebased sweep.
    """
    try:
        run = {
            "stack": stack,
            "d_model": d_model,
            "seq_len": seq_len,
            "task_options": {"num_pairs": num_pairs} | ({"random_non_queries": True} if random_non_queries else {}),
            "learning_rate": list(parse_floats("learning-rates", learning_rates)),
            "seed": list(parse_numbers("seeds", seeds)),
            "epochs": epochs,
            "stop_above": stop_above,
            "batch_size": batch_size,
            "weight_decay": weight_decay,
            "num_train": num_train,
            "num_test": num_test,
            "endless": endless,
            "vocab_size": vocab_size,
            "dtype": dtype,
        }
        configs = expand_grid({"run": run})
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    train(configs, out, choose_engine(None, device, jobs, None), wandb)
