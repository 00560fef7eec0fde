"""Runs made up by hand, and grids small enough to train in a test."""

import dataclasses
from pathlib import Path
from typing import Any

from rebased.paper.experiment import Experiment
from rebased.runs import Run

TINY: dict[str, Any] = {
    "d_model": [12],
    "learning_rate": [1e-2],
    "seed": [1, 2],
    "vocab_size": 40,
    "num_train": 32,
    "num_test": 8,
    "batch_size": 16,
    "epochs": 2,
    "dtype": "float32",
}


def tiny(experiment: Experiment, **changes: Any) -> Experiment:
    """The same with a smoke scale of seconds: its own stacks and lengths, everything else small."""
    grid = experiment.grids["smoke"]
    if not grid:
        return experiment
    small = {"run": dict(grid["run"]) | TINY | changes}
    if "cells" in grid:
        small["cells"] = list(grid["cells"])
    return dataclasses.replace(experiment, grids=dict(experiment.grids) | {"smoke": small})


def make_run(stack: str, accuracy: float, **config: Any) -> Run:
    fields = {
        "seq_len": 256,
        "d_model": 16,
        "learning_rate": 1e-3,
        "seed": 42,
        "stack": stack,
        "stop_above": 0.99,
    } | config
    result = {"accuracy": accuracy, "epochs": 3, "finished": "epochs", "made_with": {"commit": "abc"}}
    return Run(Path("nowhere"), fields, (), result)
