"""A sweep as a table: a row per cell, at its best learning rate."""

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from rich.console import Console

from rebased.analysis.recall_rows import accuracy, span
from rebased.analysis.summary import CellSummary
from rebased.cli.console import print_text
from rebased.cli.fitting import new_table, print_fitting
from rebased.cli.numbers import ABSENT
from rebased.models import LayerConfig

__all__ = ["print_cells"]

_ALWAYS = ("stack", "d_model", "seq_len")
_REASONS = {"reached": "reached the goal", "epochs": "all epochs", "diverged": "diverged"}
_LAYER_DEFAULTS = {x.name: x.default for x in fields(LayerConfig) if x.name in ("norm", "after")}
_CAPTION = "accuracy: the best epoch's, mean ± sd (n - 1) over seeds; learning rate: the one with the highest mean"


def print_cells(summaries: Sequence[CellSummary], console: Console) -> None:
    """Print what tells the cells apart, and how they fared."""
    cells = [_flat(summary.cell) for summary in summaries]
    names = [*_ALWAYS, *_different(cells)]
    table = new_table()
    for name in names:
        table.add_column(name)
    for name in ("learning rate", "accuracy", "seeds", "epochs"):
        table.add_column(name, justify="right")
    table.add_column("ended")
    for cell, summary in zip(cells, summaries, strict=True):
        table.add_row(
            *(_plain(cell[name]) if name in cell else ABSENT for name in names),
            f"{summary.learning_rate:g} of {len(summary.learning_rates)}",
            accuracy(summary.mean, summary.sd),
            str(len(summary.runs)),
            span(summary.epochs),
            ", ".join(f"{count} {_REASONS[reason]}" for reason, count in sorted(summary.reasons.items())),
        )
    print_fitting(table, console, keys=len(names))
    print_text(_CAPTION, console)


def _flat(cell: dict[str, Any]) -> dict[str, Any]:
    """Layers of one's own stand in place of the stack, of which they leave nothing."""
    options = ("task_options", "model_options")
    flat = {name: value for name, value in cell.items() if name not in options}
    flat |= {name: value for option in options for name, value in cell[option].items()}
    return flat | {"stack": "+".join(map(_layer, flat.pop("layers")))} if "layers" in flat else flat


def _layer(layer: dict[str, Any]) -> str:
    """``moving_average(span=16.0)``: the mixer, and what is not the default."""
    other = {name: layer[name] for name, default in _LAYER_DEFAULTS.items() if layer[name] != default}
    options = ", ".join(f"{name}={_plain(value)}" for name, value in (layer["options"] | other).items())
    return f"{layer['mixer']}({options})" if options else str(layer["mixer"])


def _different(cells: list[dict[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for cell in cells for name in cell if name not in _ALWAYS)
    return [name for name in names if len({_plain(cell.get(name)) for cell in cells}) > 1]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
